"""The exception that ends a command."""


class DistError(Exception):
    """A failure. The message is one sentence that names the cause and what to do next.

    The command line prints it to standard error and exits with status 2. Code that raises it has
    changed nothing, or has already undone its changes.
    """
