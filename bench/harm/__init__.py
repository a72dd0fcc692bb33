"""The harm that penalties against repetition do to correct text."""
