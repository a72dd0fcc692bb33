"""Bounds on what a request may do to the server, so that no client hurts the others."""
