"""The LZ penalty for SGLang, and the tools that build the patched distribution.

`params`, `codelength`, `window` and `penalizer` are the penalty; `requests`, `support` and
`startup` are what the patches in upstream's request path and start-up call; `launch_server` is what
`sglang-lz serve` becomes; `dist` builds and checks the distribution; `cpu` holds what only the CPU
flavour needs; `demo` is the demo model.
"""

__version__ = "0.1.0"
