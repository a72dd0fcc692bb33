"""Locates the patches: in a checkout's patches/, or inside an installed package.

Both contain the file `releases`, which lists the supported upstream releases, and a folder for each
release with `upstream.lock`, `series` and the patches. A built package contains only the release
that it was built from.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import DistError

PACKAGE = Path(__file__).resolve().parent.parent
"""The sglang_lz that runs."""
PACKED_PATCHES = "_patches"
"""Where a built package carries what a checkout keeps in patches/."""
RELEASES = "releases"
LOCK = "upstream.lock"
UPSTREAM = "SGLANG_LZ_UPSTREAM"
"""Environment variable that chooses the release where --upstream does not."""

_RELEASE = re.compile(r"\d+(\.\d+)+([a-z]+\d+|\.post\d+)?")


def patches_dir() -> Path:
    """Return the folder that contains `releases` and a folder for each release."""
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


def releases(patches: Path | None = None) -> tuple[str, ...]:
    """Return the supported upstream releases, newest first; DistError if there is no list.

    Args:
        patches: the folder with the list; by default `patches_dir()`.
    """
    path = (patches or patches_dir()) / RELEASES
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except FileNotFoundError:
        raise DistError(f"{path} is missing; restore it with git.") from None
    found = tuple(line for line in lines if line and not line.startswith("#"))
    if not found or not all(map(_RELEASE.fullmatch, found)) or len(set(found)) < len(found):
        raise DistError(f"{path} is not a list of releases, one a line; restore it with git.")
    return found


def choose_release(upstream: str | None, patches: Path | None = None) -> str:
    """Return the release given by ``--upstream`` or the environment, or else the newest.

    Raises DistError if it is not supported.

    Args:
        upstream: the value of ``--upstream``; None if it is not given.
        patches: the folder with the list of releases; by default `patches_dir()`.
    """
    supported = releases(patches)
    name = UPSTREAM if upstream is None else "--upstream"
    chosen = os.environ.get(UPSTREAM) or supported[0] if upstream is None else upstream
    if chosen not in supported:
        raise DistError(f"{name} is {chosen!r}; this sglang-lz has {', '.join(supported)}.")
    return chosen


def parse_release(text: str) -> str:
    """Return ``text`` if it is a valid release name, and so a safe folder name; else DistError."""
    if not _RELEASE.fullmatch(text):
        raise DistError(f"{text!r} is not a release of upstream, such as 0.5.23.")
    return text


def release_dir(version: str) -> Path:
    """Return the folder of one release's lock, series and patches."""
    return patches_dir() / version


def default_cache() -> Path:
    """Return the folder for downloaded wheels: the checkout's cache, or dist/upstream."""
    packed = patches_dir().parent == PACKAGE
    return Path("dist/upstream") if packed else PACKAGE.parent.parent / ".cache" / "upstream"
