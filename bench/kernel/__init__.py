"""The cost of a step of the penalty."""
