"""The upstream release that the tests run on: that of the SGLang which is installed."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

RELEASE = version("sglang").partition("+")[0]
PATCHES = Path(__file__).resolve().parents[1] / "patches" / RELEASE
"""Its patches."""


def newest() -> str:
    """The newest release that the checkout patches."""
    lines = (PATCHES.parent / "releases").read_text().splitlines()
    return next(line for line in lines if not line.startswith("#"))
