"""The LZ penalty for SGLang, and the tools that build the patched distribution.

docs/ARCHITECTURE.md describes the folders. The modules of this folder are the doors
through which upstream's code comes in: `gate` and `admission` for requests, `sampling` for the
steps of a batch, `guard` and `thinking` for the ends of outputs, and `startup` for servers. The
folders are the rooms behind them. tests/unit/test_rooms.py says which may import which.
"""

__version__ = "0.1.0"
