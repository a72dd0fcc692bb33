"""What the penalty costs speculative decoding."""
