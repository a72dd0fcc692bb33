"""How large the container images are."""
