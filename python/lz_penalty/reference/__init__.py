"""The LZ penalty in plain, slow torch operators. Kernels must match it; servers do not run it."""
