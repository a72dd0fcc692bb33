"""Benchmarks, a folder each: `python -m bench.NAME --help`, from the root of the repository."""

import sys
from pathlib import Path

# Last, so that an installed sglang_lz comes first: some machines that measure have a checkout only.
sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))
