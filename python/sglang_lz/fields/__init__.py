"""The request fields of the penalties and the loop guard, and the modes that refuse them."""
