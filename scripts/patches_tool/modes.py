"""The server arguments and speculative algorithms of a release.

`sglang_lz/bounds/modes.py` records for each whether the penalties are exact in it. Those that have
been reviewed are listed in ``reviewed-modes`` beside the patches; a test fails for any other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import Read

REVIEWED = "reviewed-modes"
ARGUMENTS = r"sglang/srt/(server_args|arg_groups/fields/\w+)\.py"
ALGORITHMS = "sglang/srt/speculative/spec_info.py"


def modes(names: Iterable[str], read: Read) -> list[str]:
    """Return ``argument NAME`` and ``algorithm NAME`` of upstream's files, sorted.

    Raises DistError if they are not found in the expected files.
    """
    found = set()
    for name in names:
        if re.fullmatch(ARGUMENTS, name):
            for node in ast.walk(ast.parse(read(name) or b"")):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.add(f"argument {node.target.id}")
    for node in ast.walk(ast.parse(read(ALGORITHMS) or b"")):
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeAlgorithm":
            members = (line.targets[0] for line in node.body if isinstance(line, ast.Assign))
            found |= {f"algorithm {m.id}" for m in members if isinstance(m, ast.Name)}
    if {mode.split()[0] for mode in found} != {"argument", "algorithm"}:
        raise DistError("no arguments or algorithms were found in this release; change modes.py.")
    return sorted(found)


def reviewed(root: Path) -> list[str]:
    """Return the modes listed in ``root``/reviewed-modes; DistError if it is missing."""
    if not (root / REVIEWED).exists():
        raise DistError(f"{root / REVIEWED} is missing; restore it with git.")
    lines = (root / REVIEWED).read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
