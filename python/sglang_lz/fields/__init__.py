"""The request fields of the penalties, and the server modes in which they are refused."""
