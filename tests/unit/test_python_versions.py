"""Our code runs on Python 3.11.0 and all later versions.

ruff and mypy know what 3.12 brought. Nothing but this knows what a later 3.11 brought.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def sources() -> list[Path]:
    """Every Python file that is tracked or about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).exists()]


def newer_than_3_11_0(tree: ast.AST) -> Iterator[str]:
    """Features that do not work on Python 3.11.0, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.TryStar):
            for raised in filter(is_raise_of_another, here(node.handlers)):
                yield f"line {raised.lineno}: raised in except*, which 3.11.4 no longer wraps"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = {keyword.arg for keyword in node.keywords}
            if node.func.attr in {"extract", "extractall", "unpack_archive"} and "filter" in named:
                yield f"line {node.lineno}: {node.func.attr} takes filter from 3.11.4 on"
        elif isinstance(node, ast.Attribute) and node.attr in {"data_filter", "tar_filter"}:
            yield f"line {node.lineno}: tarfile.{node.attr} came with 3.11.4"


def is_raise_of_another(node: ast.stmt | ast.AST) -> bool:
    """A bare `raise` puts back what was caught, in every version."""
    return isinstance(node, ast.Raise) and node.exc is not None


def here(nodes: list[ast.ExceptHandler]) -> Iterator[ast.AST]:
    """All below some nodes, but for the bodies of functions, which run elsewhere."""
    todo: list[ast.AST] = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))


def test_nothing_needs_a_later_release_of_3_11() -> None:
    files = sources()
    assert len(files) > 100
    found = [
        f"{file.relative_to(ROOT)}, {line}"
        for file in files
        for line in newer_than_3_11_0(ast.parse(file.read_bytes()))
    ]
    assert not found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("try: pass\nexcept* OSError as e:\n  if e: raise e.exceptions[0] from None", 1),
        ("try: pass\nexcept* OSError: raise", 0),
        ("try: pass\nexcept* OSError:\n  def f(): raise ValueError", 0),
        ("try: pass\nexcept OSError: raise ValueError", 0),
        ("archive.extractall(folder, filter='data')", 1),
        ("archive.extractall(folder)", 0),
        ("tarfile.data_filter", 1),
    ],
)
def test_newer_features_are_found(code: str, found: int) -> None:
    assert len(list(newer_than_3_11_0(ast.parse(code)))) == found
