"""The cost of the penalty on a server."""
