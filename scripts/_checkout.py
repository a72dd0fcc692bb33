"""Makes the packages of this checkout importable, with the standard library alone.

Scripts run before anything is installed: import this before `sglang_lz` or `bench`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The root of the checkout."""

# Last, so that an installed sglang_lz comes first: the tests of an installed wheel import scripts.
sys.path += [str(ROOT / "python"), str(ROOT)]
