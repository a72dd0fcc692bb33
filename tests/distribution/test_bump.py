"""`bump`: the patches carried to another upstream release, "0.5.23 -> 0.5.24" in small."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from distribution.world import TAGS, UPSTREAM, World, git, write_upstream_wheel
from patches_tool.upstream import ARCHES, PYTHONS, Lock, verify

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("griffe") is None, reason="griffelib is missing"),
]
NEW = "0.5.24"
CONFLICT = {"kernel": ("import sgl_kernel\n", "import sgl_kernel as kernel\n")}


def release(world: World, **changed: tuple[str, str]) -> Path:
    """Write the six wheels of `NEW`, with text of modules replaced; return the patches' folder."""
    files = {
        path.replace("0.5.23", NEW): text.replace("0.5.23", NEW).replace("5, 23)", "5, 24)")
        for path, text in UPSTREAM.items()
    }
    for module, (before, after) in changed.items():
        assert before in files[f"sglang/{module}.py"]
        files[f"sglang/{module}.py"] = files[f"sglang/{module}.py"].replace(before, after)
    for python in PYTHONS:
        for arch in ARCHES:
            name = f"sglang-{NEW}-{python}-{python}-manylinux_2_34_{arch}.whl"
            write_upstream_wheel(world.wheel.with_name(name), files)
    return world.patches.with_name(NEW)


def stops(world: World, *arguments: object) -> str:
    """Run `bump`, which must leave something to a person; return what it prints."""
    done = world.run("bump", NEW, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_lines_that_moved(world: World) -> None:
    """git carries what only moved; the new folder takes the place of the old one and is whole."""
    new = release(world, sampler=("line_0 = 0\n", "first = 0\nline_0 = 0\n"))
    out = world.ok("bump", NEW, "--tree", "new")
    assert "5 patches carried" in out
    assert f"patches/{NEW} is written" in out
    assert not world.patches.exists()
    assert "@@ -9,6 +9,8 @@" in (new / "sampling/call.patch").read_text()
    lock = Lock.load(new / "upstream.lock")
    assert (lock.version, lock.revision, len(lock.wheels)) == (NEW, 1, 6)
    for pin in lock.wheels:
        verify(world.cache / pin.filename, pin)
    world.ok("check")
    wheel = world.root / world.ok("build").strip()
    assert wheel.name == f"sglang-{NEW}+lz1-{TAGS}.whl"
    world.ok("doctor", path=world.site(wheel, "built"))
    assert "the patches are for 0.5.24" in world.fails("apply", world.site())


def test_a_conflict_that_a_person_settles(world: World) -> None:
    new = release(world, **CONFLICT)
    out = stops(world, "--tree", "new")
    assert "conflict  cpu/stand-in.patch  python/sglang/kernel.py\n" in out
    assert "scripts/patches bump 0.5.24 --tree new --continue" in out
    assert "conflict" in stops(world, "--tree", "new", "--continue")
    assert not new.exists()
    text = UPSTREAM["sglang/kernel.py"].replace("sgl_kernel\n", "sgl_kernel as kernel  # ours\n", 1)
    (world.root / "new/python/sglang/kernel.py").write_text(text)
    git(world.root / "new", "add", "--all")
    world.ok("bump", NEW, "--tree", "new", "--continue")
    assert "+import sgl_kernel as kernel  # ours" in (new / "cpu/stand-in.patch").read_text()
    world.ok("check")


@pytest.mark.full
def test_clean_but_a_name_is_missing(world: World) -> None:
    """The release imports inside a function what it imported at the top of the module."""
    tree = world.root / "tree"
    world.ok("checkout", "--wheel", world.wheel, tree)
    server = tree / "python/sglang/server.py"
    server.write_bytes(server.read_bytes() + b"\r\n\r\ndef ours():\r\n    return lz\r\n")
    git(tree, "commit", "-qa", "--fixup=HEAD~1")
    command = "git -c sequence.editor=true rebase -q -i --autosquash upstream"
    subprocess.run(command.split(), cwd=tree, check=True)
    world.ok("export", tree)
    new = release(world, server=("check, lz, step\r\n", "check, step\r\n"))
    out = stops(world, "--tree", "new")
    assert "sglang/server.py: F821 Undefined name `lz`" in out
    assert "Nothing was written" in out
    assert not new.exists()


@pytest.mark.full
def test_our_code_uses_a_name_that_the_release_lacks(world: World) -> None:
    (world.package / "reads.py").write_text(
        "from sglang.server import start\nfrom sglang.srt.server_args import ServerArgs\n"
        "def read(x):\n    return x.model_path, getattr(x, 'algorithms', None)\n"
    )
    gone = ("class ServerArgs:\n    model_path: str\n", "class Args:\n    path: str\n")
    more = ("def start():\r\n", "def start(port, host=None):\r\n")
    new = release(world, **{"srt/server_args": gone, "server": more})
    out = world.ok("bump", NEW, "--tree", "new")
    assert "our code: sglang.server.start has other parameters: port\n" in out
    assert "our code: sglang.srt.server_args has no ServerArgs\n" in out
    assert "our code: nothing in the release has the name model_path, which our code reads\n" in out
    assert "algorithms" not in out
    assert "argument path is new: review it, then add it to patches/0.5.24/reviewed-modes\n" in out
    assert (new / "reviewed-modes").read_text() == "algorithm NGRAM\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("9.9.9",), "pip could not download sglang==9.9.9"),
        (("9.9.9", "--dry-run"), "pip could not download sglang==9.9.9"),
        (("../x",), "'../x' is not a release of upstream"),
        (("0.5.23",), "The patches are for sglang 0.5.23 already"),
        ((NEW, "--continue"), "is not where `scripts/patches bump 0.5.24` stopped"),
    ],
)
def test_refusals(world: World, arguments: tuple[str, ...], words: str) -> None:
    assert words in world.fails("bump", *arguments)
