"""Whether penalties are what they say, here and on stock SGLang."""
