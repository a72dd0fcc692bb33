"""The package's layout: the modules at its root, and which subpackage may import which."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python/sglang_lz"

FIRST = "compiled"
"""The module beside the rooms that each of them may import."""
ROOMS = (
    "cpu",
    "demo",
    "fields",
    "penalty",
    "loops",
    "playground",
    "bounds",
    "models",
    "distribution",
    "server",
    "proper",
)
"""Each may import from itself and from those before it."""
DOORS = {
    *("__init__", "__main__", "admission", "answers", "detokenizer", "fixes", "gate", "guard"),
    *("sampling", "sections", "startup", "thinking", "upstream_benchmarks"),
}
"""The modules beside the rooms through which upstream's code comes in; no room imports them."""


@cache
def modules() -> dict[str, Path]:
    """The files by their modules' names below the package: "penalty.kernels" for its __init__."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = file
    return found


def imported(module: str) -> set[str]:
    """All that a module imports anywhere in its text; ours as in `modules`, others by their names.

    `from package import name` counts as a module of the package if it is one.
    """
    file = modules()[module]
    package = ["sglang_lz", *file.relative_to(PACKAGE).parent.parts]
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{whole}.{alias.name}" for alias in node.names]
    return {_module(name) for name in names} - {module}


def _module(name: str) -> str:
    """The module that an import of `name` needs; of ours, without the package's name."""
    if not re.match(r"sglang_lz\b", name):
        return name
    inside = name.removeprefix("sglang_lz").lstrip(".")
    own = (one for one in (inside, inside.rpartition(".")[0]) if one in modules())
    return next(own, "__init__")


def place(module: str) -> int:
    """Where a module stands in the order."""
    room, _, inside = module.partition(".")
    if not inside and room not in ROOMS:
        return -1 if room == FIRST else len(ROOMS)
    return ROOMS.index(room)


def test_no_module_imports_from_a_later_room() -> None:
    """Imports within functions count, and those for types alone."""
    found = {
        (module, other)
        for module in modules()
        for other in imported(module) & modules().keys()
        if place(other) > place(module)
    }
    assert found == set()


def test_patches_import_from_few_rooms_and_doors() -> None:
    """Never from `penalty`, which knows nothing of upstream."""
    found = set()
    for patch in (ROOT / "patches").glob("*/*/*.patch"):
        for line in re.findall(r"^\+\s*((?:from|import) sglang_lz\b.*)$", patch.read_text(), re.M):
            (node,) = ast.parse(line).body
            assert isinstance(node, ast.ImportFrom), line
            found |= {(_module(f"{node.module}.{alias.name}"), alias.name) for alias in node.names}
    assert {module for module, _ in found} & DOORS == DOORS - {"__init__", "__main__"}
    rooms = {module.partition(".")[0] for module, _ in found if module not in DOORS}
    assert rooms <= {"bounds", "cpu", "fields", "proper"}


def test_no_import_cycle() -> None:
    graph = {module: imported(module) & modules().keys() for module in modules()}
    TopologicalSorter(graph).prepare()


def test_the_penalty_is_imported_without_sglang() -> None:
    names = [f"sglang_lz.{module}" for module in modules() if module.startswith("penalty")]
    program = (
        "import importlib, sys\n"
        "sys.modules |= dict.fromkeys(['sglang', 'sgl_kernel'])\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    subprocess.run([sys.executable, "-c", program, *names], check=True)
