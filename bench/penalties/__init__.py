"""What a step of the penalties over whole histories costs."""
