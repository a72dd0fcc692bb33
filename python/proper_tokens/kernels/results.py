"""Results of searches: whether the text can still end."""

DEAD, ALIVE, OPEN, ALWAYS, NEVER, UNKNOWN, FULL, SPENT = 0, 1, 2, 3, 4, -2, -9, -8
"""`OPEN` means that the search is still running, `ALWAYS` and `NEVER` that the state is alive or
dead whatever the last token is, `UNKNOWN` that this decides, `FULL` that a larger memo is needed,
and `SPENT` that no steps are left or the search was stopped."""
