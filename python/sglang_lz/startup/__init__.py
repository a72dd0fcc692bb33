"""The server's start, and what is checked of the upstream that it runs."""

DEFAULT_PORT = "30000"
DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"
"""The address at which `serve` serves by default."""
PLAYGROUND_PORT = 30080
