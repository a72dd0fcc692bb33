"""The committed patches pass the lint that does not need upstream's files."""

from __future__ import annotations

from pathlib import Path

from sglang_lz.distribution.lint import lint
from sglang_lz.distribution.lock import ARCHES, PYTHONS, Lock
from sglang_lz.distribution.patchset import FLAVOUR_GROUPS, GROUPS, PatchSet

PATCHES = Path(__file__).resolve().parents[2] / "patches"


def test_lint() -> None:
    assert lint(PATCHES) == []


def test_every_group_has_a_patch() -> None:
    assert {patch.group for patch in PatchSet.load(PATCHES).patches} == set(GROUPS)


def test_both_flavours_and_the_stock_build_can_be_selected() -> None:
    """No patch of a chosen group builds on one that is left out."""
    patches = PatchSet.load(PATCHES)
    for groups in (*FLAVOUR_GROUPS.values(), ("cpu",)):
        assert patches.select(groups).blobs


def test_every_supported_wheel_is_pinned() -> None:
    lock = Lock.load(PATCHES / "upstream.lock")
    pinned = [(wheel.python, wheel.arch) for wheel in lock.wheels]
    assert pinned == [(python, arch) for python in PYTHONS for arch in ARCHES]
    assert lock.dump() == (PATCHES / "upstream.lock").read_text()
    for wheel in lock.wheels:
        assert f"-{lock.version}-{wheel.python}-{wheel.python}-" in wheel.filename
        assert wheel.filename.endswith(f"_{wheel.arch}.whl")
