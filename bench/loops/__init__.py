"""The parts of bench/repetition.py."""
