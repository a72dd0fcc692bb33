"""The layout of our packages: which of them, and which folder of them, may import which."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "python"

LIBRARIES = ("lz_penalty", "proper_tokens")
"""Each imports none of our other packages, and no engine."""
ENGINES = {"sglang", "sgl_kernel", "vllm"}
LAYERS = (
    "cpu",
    "demo",
    "models",
    "bounds",
    "constraints",
    "guard",
    "http",
    "scheduler",
    "fixes",
    "playground",
    "startup",
)
"""The folders of `sglang_lz`; each may import from itself and from those before it."""
DOORS = {
    "constraints.backend",
    "constraints.drafts",
    "constraints.pauses",
    "fixes.answers",
    "fixes.batches",
    "fixes.detokenizer",
    "fixes.sections",
    "guard.guard",
    "guard.thinking",
    "http.admission",
    "http.gate",
    "scheduler.sampling",
    "startup.server",
}
"""The modules of `sglang_lz` through which upstream's code comes in."""


@cache
def modules() -> dict[str, Path]:
    """The files of our packages by their modules' names, "lz_penalty.kernels" for its __init__."""
    found = {}
    for name in (*LIBRARIES, "sglang_lz"):
        for file in (PYTHON / name).rglob("*.py"):
            parts = file.relative_to(PYTHON).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def imported(module: str) -> set[str]:
    """All that a module imports anywhere in its text; ours as in `modules`, others by their names.

    `from package import name` counts as a module of the package if it is one.
    """
    names: list[str] = []
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # The wheel of the CPU flavour has a copy of that folder at its top.
            assert node.level == 0 or ".sgl_kernel" in module, f"{module} has a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {_module(name) for name in names} - {module}


def _module(name: str) -> str:
    """The module of ours that an import of `name` needs; `name` itself if it is not ours."""
    return next((one for one in (name, name.rpartition(".")[0]) if one in modules()), name)


def place(module: str) -> int:
    """Where a module of `sglang_lz` stands in the order: libraries first, its own root last."""
    package, _, inside = module.partition(".")
    if package != "sglang_lz":
        return -1
    layer = inside.partition(".")[0]
    return LAYERS.index(layer) if layer in LAYERS else len(LAYERS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_imports_no_other_package_of_ours_and_no_engine(library: str) -> None:
    others = {*LIBRARIES, "sglang_lz", *ENGINES} - {library}
    found = {
        (module, other)
        for module in modules()
        if module.partition(".")[0] == library
        for other in imported(module)
        if other.partition(".")[0] in others
    }
    assert found == set()


def test_no_module_imports_from_a_later_room() -> None:
    """Imports within functions count, and those for types alone."""
    ours = {module for module in modules() if module.startswith("sglang_lz.")}
    found = {
        (module, other)
        for module in ours
        for other in imported(module) & ours
        if place(other) > place(module)
    }
    # The command line and the doors of upstream's benchmarks start whatever they are asked for.
    assert {pair for pair in found if pair[0] != "sglang_lz.cli"} == set()


def test_the_scheduler_loads_no_proper_tokens() -> None:
    """Nor does any module that it imports."""
    program = (
        "import sys, sglang_lz.scheduler.sampling\n"
        "print(*(name for name in sys.modules if name.startswith('proper_tokens.')))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_patches_import_from_few_rooms_and_doors() -> None:
    """Of the penalty, only the types of request fields."""
    found = set()
    ours = "|".join((*LIBRARIES, "sglang_lz"))
    for patch in (ROOT / "patches").glob("*/*/*.patch"):
        for line in re.findall(
            rf"^\+\s*((?:from|import) (?:{ours})\b.*)$", patch.read_text(), re.M
        ):
            (node,) = ast.parse(line).body
            assert isinstance(node, ast.ImportFrom), line
            found |= {_module(f"{node.module}.{alias.name}") for alias in node.names}
    inside = {module.removeprefix("sglang_lz.") for module in found if place(module) >= 0}
    assert inside >= DOORS
    assert {module.partition(".")[0] for module in inside - DOORS} <= {"bounds", "cpu"} | {
        "constraints",
        "http",
    }
    assert {module.rpartition(".")[0] for module in found if place(module) < 0} == {
        "lz_penalty.fields"
    }


def test_no_import_cycle() -> None:
    graph = {module: imported(module) & modules().keys() for module in modules()}
    TopologicalSorter(graph).prepare()


def test_both_libraries_keep_machine_code_alike() -> None:
    """Neither may import the other, so both have this. `proper_tokens` needs two functions more."""
    first, second = (PYTHON / name / "compiled.py" for name in LIBRARIES)
    assert second.read_text().startswith(first.read_text())
