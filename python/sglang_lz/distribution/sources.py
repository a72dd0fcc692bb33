"""Locates the patches: in a checkout's patches/, or inside an installed package.

Either contains one folder, which has the name of the upstream release that the patches are for. It
holds `upstream.lock`, `series`, `judged` and the patches.
"""

from __future__ import annotations

from pathlib import Path

from sglang_lz.distribution.errors import DistError

PACKAGE = Path(__file__).resolve().parent.parent
"""The sglang_lz that runs."""
PACKAGES = ("lz_penalty", "proper_tokens", "sglang_lz")
"""Our packages, which are installed beside each other."""
PACKED_PATCHES = "_patches"
"""Where a built package carries what a checkout keeps in patches/."""
LOCK = "upstream.lock"


def patches_dir() -> Path:
    """Return the folder that contains the folder of the release."""
    packed = PACKAGE / PACKED_PATCHES
    return packed if packed.is_dir() else PACKAGE.parent.parent / "patches"


def checkout_patches_dir() -> Path:
    """Return patches/ of the running checkout; DistError if this is an installed package."""
    folder = patches_dir()
    if folder.parent == PACKAGE:
        raise DistError(
            "This sglang-lz is an installed one, which carries its patches read-only; run "
            "`PYTHONPATH=python python -m sglang_lz` in a checkout instead."
        )
    return folder


def release(patches: Path | None = None) -> str:
    """Return the one release that patches (by default ours) are for; DistError if not just one."""
    folder = patches or patches_dir()
    found = sorted(path.parent.name for path in folder.glob(f"*/{LOCK}"))
    if len(found) != 1:
        raise DistError(f"{folder} holds {len(found)} releases, not one; restore it with git.")
    return found[0]


def release_dir() -> Path:
    """Return the folder of the release's lock, series and patches."""
    return patches_dir() / release()


def default_cache() -> Path:
    """Return the folder for downloaded wheels: the checkout's cache, or dist/upstream."""
    packed = patches_dir().parent == PACKAGE
    return Path("dist/upstream") if packed else PACKAGE.parent.parent / ".cache" / "upstream"
