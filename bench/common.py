"""What the benchmarks share: where one was run, and the form of its result file."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Benchmarks run from a checkout, whether or not its package is installed.
sys.path.insert(0, str(ROOT / "python"))


def machine() -> dict[str, Any]:
    """The processor, its cores and the Python of this machine."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def versions(*distributions: str) -> dict[str, str | None]:
    """The version of each installed distribution, None for one that is not."""
    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of this checkout, marked if the code to be measured differs from it; or None.

    A machine that only measures may have no git, or a checkout without its history.
    """
    git = ["git", "-C", str(ROOT)]
    head = output(*git, "rev-parse", "HEAD")
    changed = output(*git, "status", "--porcelain", "python", "patches", ":(glob)bench/*.py")
    return f"{head}-changed" if head and changed else head


def output(*command: str) -> str | None:
    """What a command prints; None if it cannot run or fails."""
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def compact_rows(text: str) -> str:
    """Put every innermost list of a JSON document on one line."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if "model name" in line), "unknown"
    )
