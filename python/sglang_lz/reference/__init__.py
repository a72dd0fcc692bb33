"""The LZ penalty in torch operators, slow and plain. Kernels must equal it; no server runs it."""
