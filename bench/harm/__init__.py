"""What penalties against repetition do to text that is right as it stands."""
