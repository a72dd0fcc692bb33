"""What the penalty costs a server."""
