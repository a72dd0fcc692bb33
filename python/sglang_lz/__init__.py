"""The LZ penalty for SGLang, and the tools that build the patched distribution.

docs/ARCHITECTURE.md has a line on each module. In short: `params` is the table of the request
fields; `sampling` is what upstream's sampling calls, `penalizer` and `window` the state behind it,
`kernels` the steps that run in a server and `reference` what they must equal; `requests` and `gate`
check requests, `startup`, `support` and `hooks` servers; `launch_server` is what `sglang-lz serve`
becomes; `distribution` builds and checks the wheels; `cpu` is the CPU flavour's own; `demo` holds
its models.
"""

__version__ = "0.1.0"
