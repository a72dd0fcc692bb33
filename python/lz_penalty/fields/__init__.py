"""The request fields of the penalties and the loop guard."""
