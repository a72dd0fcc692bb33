"""Whether the penalty works: degenerate repetition and accuracy."""
