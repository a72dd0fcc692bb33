"""The server's start, and what is checked of the upstream that it runs."""
