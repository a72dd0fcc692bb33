"""The one exception of the distribution tools."""


class DistError(Exception):
    """A failure told in one sentence that names the cause and what to do next.

    The command line prints it to standard error and exits with status 2. Whoever raises it has
    changed nothing, or has already undone what was changed.
    """
