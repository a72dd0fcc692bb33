"""The upstream releases of the checkout, and the one that the tests run on."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from sglang_lz.distribution.sources import releases

FOLDER = Path(__file__).resolve().parents[1] / "patches"
RELEASES = releases(FOLDER)
"""Newest first. An installed sglang_lz knows its own alone."""
RELEASE = version("sglang").partition("+")[0]
"""That of the SGLang which is installed."""
PATCHES = FOLDER / RELEASE
"""Its patches."""
