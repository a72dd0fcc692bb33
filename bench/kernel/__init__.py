"""What a step of the penalty costs."""
