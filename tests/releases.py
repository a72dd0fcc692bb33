"""The upstream release of the checkout."""

from __future__ import annotations

from pathlib import Path

from sglang_lz.distribution.sources import release

FOLDER = Path(__file__).resolve().parents[1] / "patches"
RELEASE = release(FOLDER)
PATCHES = FOLDER / RELEASE
