"""The LZ penalty for SGLang, and the tools that build the patched distribution.

docs/ARCHITECTURE.md describes each module in one line. In short: `params` is the table of request
fields. Upstream's sampling code calls `sampling`; `penalizer` and `window` hold the state behind
it. `kernels` has the steps that run in a server, and `reference` the slow versions that they must
match. `requests` and `gate` check requests; `startup`, `support` and `hooks` check servers.
`launch_server` is the process that `sglang-lz serve` turns into. `distribution` builds and checks
the wheels, `cpu` belongs to the CPU flavour, and `demo` holds the models for the demos.
"""

__version__ = "0.1.0"
