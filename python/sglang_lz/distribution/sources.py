"""Where this copy of the package keeps its patches: a checkout's patches/, or inside itself."""

from __future__ import annotations

from pathlib import Path

from .errors import DistError

PACKAGE = Path(__file__).resolve().parent.parent
"""The sglang_lz that runs."""
PACKED_PATCHES = "_patches"
"""Where a built package carries what a checkout keeps in patches/."""
LOCK = "upstream.lock"


def patches_dir() -> Path:
    """Return the folder of series, patches and lock."""
    packed = PACKAGE / PACKED_PATCHES
    return packed if packed.is_dir() else PACKAGE.parent.parent / "patches"


def checkout_patches_dir() -> Path:
    """Return patches/ of the checkout that runs; DistError if an installed package runs."""
    folder = patches_dir()
    if folder.parent == PACKAGE:
        raise DistError(
            "This sglang-lz is an installed one, which carries its patches read-only; run "
            "`PYTHONPATH=python python -m sglang_lz` in a checkout instead."
        )
    return folder
