"""The fixture that gives each test a small world of its own; see world.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from distribution import world as parts
from distribution.world import EDITS, SOURCE, World, git, patched


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world as every test finds it."""
    root = tmp_path_factory.mktemp("world")
    world = World(root)
    world.wheel.parent.mkdir()
    parts.write_upstream_wheel(world.wheel, parts.UPSTREAM)
    rooms = ("lz_penalty/fields", "sglang_lz/models", "sglang_lz/startup")
    for folder in (*(f"python/{room}" for room in rooms), "scripts"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE.parent / folder, world.checkout / folder, ignore=skipped)
    for file in ("lz_penalty/__init__.py", "sglang_lz/__main__.py", "sglang_lz/cli.py"):
        shutil.copy(SOURCE / file, world.packages / file)
    parts.put(world.packages, {"proper_tokens/__init__.py": ""})
    ours = {f"demo/{name}/config.json": "{}\n" for name in ("model", "reasoner")}
    ours |= {"__init__.py": "", "cpu/sgl_kernel/__init__.py": "run = None\n"}
    ours |= {"cpu/requirements.txt": "# ours\ntorch==2.13.0  # CPU\n\nnumpy\n"}
    parts.put(world.package, ours)
    tree = root / "tree"
    tree.mkdir()
    git(tree, "init", "-q")
    names: list[str] = []
    for name in [None, *EDITS]:
        names += [name] if name else []
        parts.put(tree / "python", patched(names))
        git(tree, "add", "-A")
        words = f"{name}".partition("/")[2].removesuffix(".patch").replace("-", " ")
        git(tree, "commit", "-qF-", stdin=parts.MESSAGE.format(name=words))
        if name:
            patch = git(tree, "format-patch", "-1", "--stdout", *parts.FORMAT.split())
            parts.put(world.patches, {name: patch})
    shutil.rmtree(tree)
    (world.patches / "series").write_text("\n".join(EDITS) + "\n")
    parts.write_lock(world.patches / "upstream.lock", world.wheel)
    (world.patches / "reviewed-modes").write_text("algorithm NGRAM\nargument model_path\n")
    world.site(world.wheel, "installed")
    return root


@pytest.fixture
def world(template: Path, tmp_path: Path) -> World:
    """A world of one test's own."""
    shutil.copytree(template, tmp_path / "world")
    return World(tmp_path / "world")
