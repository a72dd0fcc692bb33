"""Which files of our package each flavour carries, in the small world and in the real package."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from distribution.world import World
from releases import PATCHES
from sglang_lz.distribution.overlay import NOT_FOR_CUDA, package_files
from sglang_lz.distribution.patchset import FLAVOUR_GROUPS, PatchSet

pytestmark = pytest.mark.slow


def package_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return {name.removeprefix("sglang_lz/") for name in names if name.startswith("sglang_lz/")}


def test_cuda_leaves_out_the_reasoner_and_the_cpu_flavour(world: World) -> None:
    both = {"demo/model/config.json", "__init__.py", "distribution/overlay.py", "seal.json"}
    cpu_only = {"demo/reasoner/config.json", "cpu/requirements.txt"}
    cuda = package_names(world.build())
    assert both <= cuda
    assert cuda.isdisjoint(cpu_only)
    assert both | cpu_only <= package_names(world.build("--flavour", "cpu"))


def test_an_installed_wheel_makes_itself_and_no_cpu_wheel(world: World) -> None:
    wheel = world.build()
    site = world.site(wheel)
    world.ok("doctor", path=site)
    world.ok("build", "--wheel", world.wheel, "--out", "again", path=site)
    assert (world.root / "again" / wheel.name).read_bytes() == wheel.read_bytes()
    sentence = world.fails("build", "--wheel", world.wheel, "--flavour", "cpu", path=site)
    assert "the CPU flavour is built from a whole checkout" in sentence


def uses_of_left_out(flavour: str) -> set[str]:
    """Which files and patches of a flavour import from a folder of `NOT_FOR_CUDA`."""
    texts = package_files(flavour, FLAVOUR_GROUPS[flavour])
    texts = {name: text for name, text in texts.items() if name.endswith(".py")}
    for patch in PatchSet.load(PATCHES).select(FLAVOUR_GROUPS[flavour]).patches:
        texts[patch.name] = b"\n".join(re.findall(rb"^\+(.*)", patch.data, re.M))
    left_out = "|".join(path.strip("/").replace("/", "[.]") for path in NOT_FOR_CUDA)
    from_where = r"^\s*(?:from|import) (?:\.+|sglang_lz\.)"
    names = r"^\s*from (?:\.+(?:demo)?|sglang_lz(?:\.demo)?) import .*\b(?:cpu|reasoner)\b"
    uses = re.compile(rf"{from_where}(?:{left_out})\b|{names}", re.M)
    return {name for name, text in texts.items() if uses.search(text.decode())}


def test_nothing_in_cuda_uses_what_is_left_out() -> None:
    assert "cpu/environment.patch" in uses_of_left_out("cpu")
    assert uses_of_left_out("cuda") == set()
    files = package_files("cuda", FLAVOUR_GROUPS["cuda"])
    assert {"penalty/kernels/cpu.py", "demo/model/config.json"} <= files.keys()
