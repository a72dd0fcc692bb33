"""Where numba keeps what it compiles of a checkout."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from _environment import digest, sources_of_compiled

KEPT = 3
"""Folders of earlier states: switching between branches compiles nothing anew."""
ROOT = Path(__file__).resolve().parents[1]


def use_own_folder(root: Path = ROOT) -> None:
    """Name numba a folder of its own for each state of the sources, if they are imported.

    Compiled functions hold constants of other modules, but numba looks at their own file alone.
    """
    site = root / "python"
    spec = importlib.util.find_spec("lz_penalty")
    if spec and spec.origin and Path(spec.origin).parents[1] == site:
        state = digest(site, sources_of_compiled(site))
        folder = root / ".cache" / "numba" / state[:16]
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        *old, _ = sorted(folder.parent.iterdir(), key=lambda other: other.stat().st_mtime)
        for other in old[:-KEPT]:
            shutil.rmtree(other, ignore_errors=True)
        os.environ["NUMBA_CACHE_DIR"] = str(folder)
