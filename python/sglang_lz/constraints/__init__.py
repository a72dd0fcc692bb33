"""Constraints of upstream within bounds, and `proper_tokens` as one of their backends."""
