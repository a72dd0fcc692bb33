"""Which files of our package each flavour carries, in the small world and in the real package."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

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


def imported(name: str, text: bytes) -> Iterator[str]:
    """Our modules, or their contents, that a module of ours imports, dotted."""
    parents = ["sglang_lz", *PurePosixPath(name).parent.parts]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def uses_of_left_out(flavour: str) -> set[str]:
    """Which files and patches of a flavour name a module of `NOT_FOR_CUDA`."""
    groups = FLAVOUR_GROUPS[flavour]
    named = {
        name: "\n".join(imported(name, text))
        for name, text in package_files(flavour, groups).items()
        if name.endswith(".py")
    }
    for patch in PatchSet.load(PATCHES).select(groups).patches:
        named[patch.name] = "\n".join(re.findall(r"^\+.*", patch.data.decode(), re.MULTILINE))
    modules = [path.rstrip("/").removesuffix(".py").replace("/", ".") for path in NOT_FOR_CUDA]
    left_out = re.compile(rf"\bsglang_lz\.({'|'.join(map(re.escape, modules))})\b")
    return {name for name, text in named.items() if left_out.search(text)}


def test_nothing_in_cuda_uses_what_is_left_out() -> None:
    assert "cpu/environment.patch" in uses_of_left_out("cpu")
    assert uses_of_left_out("cuda") == set()
    files = package_files("cuda", FLAVOUR_GROUPS["cuda"])
    assert {"penalty/kernels/cpu.py", "demo/model/config.json"} <= files.keys()
