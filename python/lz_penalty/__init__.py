"""The LZ penalty and its companions: state, kernels, definition, request fields, search for loops.

Nothing here imports an engine, so that any of them can use it: `sglang_lz` does for SGLang, and
`transformers` is for that library's `generate`.
"""

__version__ = "0.1.0"
