"""The upstream releases of the checkout, and the one that the tests run on."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "patches"
RELEASES = [
    line for line in (FOLDER / "releases").read_text().splitlines() if not line.startswith("#")
]
"""Newest first. An installed sglang_lz knows its own alone."""
RELEASE = version("sglang").partition("+")[0]
"""That of the SGLang which is installed."""
PATCHES = FOLDER / RELEASE
"""Its patches."""
