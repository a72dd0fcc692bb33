"""The draft models of the tests."""
