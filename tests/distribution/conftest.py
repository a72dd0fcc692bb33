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
    for room in ("distribution", "fields"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE / room, world.package / room, ignore=skipped)
    shutil.copy(SOURCE / "__main__.py", world.package)
    (world.package / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (world.package / "cpu" / "sgl_kernel").mkdir(parents=True)
    (world.package / "cpu" / "sgl_kernel" / "__init__.py").write_text("run = None\n")
    (world.package / "cpu" / "requirements.txt").write_text(
        "# ours\ntorch==2.13.0  # CPU\n\nnumpy\n"
    )
    for path in ("demo/model/config.json", "demo/reasoner/config.json"):
        (world.package / path).parent.mkdir(parents=True, exist_ok=True)
        (world.package / path).write_text("{}\n")
    tree = root / "tree"
    tree.mkdir()
    git(tree, "init", "-q")
    names: list[str] = []
    for name in [None, *EDITS]:
        names += [name] if name else []
        for path, text in patched(names).items():
            (tree / "python" / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / "python" / path).write_bytes(text.encode())
        git(tree, "add", "-A")
        words = f"{name}".partition("/")[2].removesuffix(".patch").replace("-", " ")
        git(tree, "commit", "-qF-", stdin=parts.MESSAGE.format(name=words))
        if name:
            patch = world.patches / name
            patch.parent.mkdir(parents=True, exist_ok=True)
            patch.write_bytes(
                git(tree, "format-patch", "-1", "--stdout", *parts.FORMAT.split()).encode()
            )
    shutil.rmtree(tree)
    (world.patches / "series").write_text("\n".join(EDITS) + "\n")
    parts.write_lock(world.patches / "upstream.lock", world.wheel)
    (world.patches / "judged").write_text("algorithm NGRAM\nargument model_path\n")
    world.site(world.wheel, "installed")
    return root


@pytest.fixture
def world(template: Path, tmp_path: Path) -> World:
    """A world of one test's own."""
    shutil.copytree(template, tmp_path / "world")
    return World(tmp_path / "world")
