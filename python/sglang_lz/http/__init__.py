"""Requests, from their bodies to what a scheduler receives, and the errors that clients get."""
