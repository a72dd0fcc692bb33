"""The upstream release of the checkout."""

from __future__ import annotations

from patches_tool.upstream import release_dir

PATCHES = release_dir()
RELEASE = PATCHES.name
