"""Where numba keeps what it compiles of a checkout's `sglang_lz`."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def use_own_folder(root: Path = ROOT) -> None:
    """Name numba a folder of its own for each state of the sources, if they are imported.

    Compiled functions hold constants of other modules, but numba looks at their own file alone.
    """
    package = root / "python" / "sglang_lz"
    spec = importlib.util.find_spec("sglang_lz")
    if spec and spec.origin and Path(spec.origin).parent == package:
        sources = sorted([*package.glob("*.py"), *package.glob("kernels/*.py")])
        state = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
        os.environ["NUMBA_CACHE_DIR"] = str(root / ".cache" / "numba" / state[:16])
