"""All that knows SGLang: the doors that its patched code calls, and the command `sglang-lz`.

docs/ARCHITECTURE.md describes the folders, and tests/unit/test_layers.py says which may import
which. What needs no engine is in `lz_penalty` and `proper_tokens`.
"""

__version__ = "0.1.0"
