"""What the kernels must equal, in torch operators and without haste; no server runs it."""
