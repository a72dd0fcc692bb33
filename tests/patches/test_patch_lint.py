"""The committed patches pass the lint that does not need upstream's files."""

from __future__ import annotations

import pytest

from patches_tool.lint import lint
from patches_tool.patchset import GROUPS, SELECTIONS, PatchSet, parse_groups
from patches_tool.upstream import ARCHES, PYTHONS, Lock
from releases import PATCHES, RELEASE


def test_lint() -> None:
    assert lint(PATCHES) == []


def test_every_group_has_a_patch() -> None:
    assert {patch.group for patch in PatchSet.load(PATCHES).patches} == set(GROUPS)


@pytest.mark.parametrize("groups", SELECTIONS, ids=",".join)
def test_every_selection_of_groups(groups: tuple[str, ...]) -> None:
    """No patch of a chosen group builds on one that is left out."""
    assert parse_groups(",".join(groups), "cuda") == groups
    assert PatchSet.load(PATCHES).select(groups).blobs


def test_every_supported_wheel_is_pinned() -> None:
    lock = Lock.load(PATCHES / "upstream.lock")
    assert lock.version == RELEASE
    pinned = [(wheel.python, wheel.arch) for wheel in lock.wheels]
    assert pinned == [(python, arch) for python in PYTHONS for arch in ARCHES]
    assert lock.dump() == (PATCHES / "upstream.lock").read_text()
    for wheel in lock.wheels:
        assert f"-{lock.version}-{wheel.python}-{wheel.python}-" in wheel.filename
        assert wheel.filename.endswith(f"_{wheel.arch}.whl")
