"""How the small models were made: text, puzzles and training; and their draft models."""
