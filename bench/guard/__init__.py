"""Benchmarks of the loop guard (docs/GUARD.md)."""
