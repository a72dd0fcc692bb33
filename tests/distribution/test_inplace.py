"""`apply` and `revert`: in place, all or nothing, and back to the same bytes."""

from __future__ import annotations

import csv
import os
import subprocess
import sys

import pytest

from distribution import world as parts
from distribution.world import EDITS, SAMPLER, World, git, patched, snapshot
from sglang_lz.startup.seal import PACKAGES

pytestmark = pytest.mark.slow

LZ = [name for name in EDITS if not name.startswith("cpu/")]


def test_installed_there_and_back(world: World) -> None:
    site = world.site()
    before = snapshot(site)
    assert "4 patches applied" in world.ok("apply", site)
    expected = patched(LZ)
    after = snapshot(site)
    for path in ("sampler.py", "server.py", "fields.py", "kernel.py"):
        assert after[f"sglang/{path}"] == expected[f"sglang/{path}"].encode()
    world.ok("doctor", path=site)
    assert "4 patches taken off" in world.ok("revert", site)
    assert snapshot(site) == before
    assert not (site / "sglang_lz").exists()


def test_record_tells_the_truth(world: World) -> None:
    site = world.site()
    world.ok("apply", site)
    with (site / parts.INFO / "RECORD").open(newline="") as file:
        rows = {row[0]: row[1:] for row in csv.reader(file)}
    files = snapshot(site)
    scripts = {path for path in files if path.startswith("bin/")}  # pip names them its own way
    assert set(files) - scripts <= set(rows)
    for path, (digest, size) in rows.items():
        if digest and not path.startswith("../"):
            assert (digest, int(size)) == (parts.record_hash(files[path]), len(files[path])), path
    code = "from importlib.metadata import version; print(version('sglang'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, check=True
    )
    assert done.stdout == b"0.5.23+lz1\n"


def test_there_and_back_with_what_numba_compiled(world: World) -> None:
    site = world.site()
    before = snapshot(site, caches=True)
    (world.packages / "lz_penalty" / "compiled.py").write_text(
        "import numba\n\n@numba.njit(cache=True)\ndef twice(x):\n    return x + x\n\ntwice(1)\n"
    )
    cache = site / "lz_penalty" / "__pycache__"
    env = os.environ | {"PYTHONPATH": str(site)}
    env |= {"NUMBA_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": ""}  # caches in their usual places
    world.ok("apply", site)
    subprocess.run([sys.executable, "-c", "import lz_penalty.compiled"], env=env, check=True)
    assert {file.suffix for file in cache.iterdir()} == {".pyc", ".nbi", ".nbc"}
    world.ok("revert", path=site)
    assert snapshot(site, caches=True) == before
    assert not [name for name in PACKAGES if (site / name).exists()]


def test_checkout_there_and_back(world: World) -> None:
    tree = world.upstream_checkout()
    world.ok("apply", tree)
    status = git(tree, "status", "--porcelain").splitlines()
    assert status == [
        *(f" M python/sglang/{name}.py" for name in ("fields", "sampler", "server")),
        *(f"?? python/{name}/" for name in ("lz_penalty", "proper_tokens")),
        "?? python/sglang_lz/",
    ]
    world.ok("doctor", path=tree / "python")
    world.ok("revert", tree)
    assert git(tree, "status", "--porcelain") == ""


def test_wrong_upstream_version(world: World) -> None:
    site = world.site()
    metadata = site / parts.INFO / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 0.5.23", "Version: 0.5.22"))
    sentence = world.fails("apply", site)
    assert "has sglang 0.5.22, but the patches are for 0.5.23" in sentence
    assert "install sglang==0.5.23" in sentence


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_dirty_or_half_applied(world: World, command: str) -> None:
    site = world.site()
    if command == "revert":
        world.ok("apply", site)
    sampler = site / "sglang" / "sampler.py"
    before = sampler.read_bytes()
    parts.append("sglang/sampler.py", "# mine\r\n")(site)
    sentence = world.fails(command, site)
    assert "sglang/sampler.py is neither" in sentence
    assert "nothing was changed" in sentence
    text = SAMPLER if command == "revert" else patched(LZ)["sglang/sampler.py"]
    assert text.encode() != before
    sampler.write_bytes(text.encode())
    sentence = world.fails(command, site)
    assert "half applied (sglang/sampler.py is" in sentence
    assert "restore sglang 0.5.23" in sentence


def test_apply_twice(world: World) -> None:
    site = world.site()
    assert "patched nothing here" in world.fails("revert", site)
    (site / "sglang_lz").mkdir()
    (site / "sglang_lz" / "notes.txt").write_text("mine")
    assert f"move {site / 'sglang_lz' / 'notes.txt'} away first" in world.fails("apply", site)
    (site / "sglang_lz" / "notes.txt").rename(world.root / "notes.txt")
    world.ok("apply", site)
    assert "`scripts/patches revert` first" in world.fails("apply", site)


def test_an_install_that_cannot_be_reverted(world: World) -> None:
    site = world.site()
    world.ok("apply", site)
    (site / "sglang_lz" / "__init__.py").write_text("mine = 1\n")
    assert "sglang_lz/__init__.py was changed" in world.fails("revert", site)
    sentence = world.fails("revert", world.site(world.build(), "built"))
    assert "installed from a wheel" in sentence
    assert "install sglang==0.5.23 with pip" in sentence


@pytest.mark.parametrize("step", [1, 3, 30])
@pytest.mark.parametrize(("interrupted", "status"), [(False, 2), (True, 130)])
def test_failure_while_writing_rolls_back(
    world: World, step: int, interrupted: bool, status: int
) -> None:
    """A full disk, or Ctrl-C: everything is as it was."""
    site, error = world.site(), "OSError(28, 'No space left on device', str(args[1]))"
    code = "os.kill(os.getpid(), signal.SIGINT)" if interrupted else f"raise {error}"
    world.hook(parts.at_call("os", "replace", step, code))
    before, done = snapshot(world.root), world.run("apply", site)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert interrupted or "cannot be written (No space left on device)" in done.stderr
    assert snapshot(world.root) == before
    assert not (site / "sglang_lz").exists()
