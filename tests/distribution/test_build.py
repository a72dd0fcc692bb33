"""Building the wheel: what is in it, that it is reproducible, and how it fails."""

from __future__ import annotations

import csv
import email
import io
import os
import re
import zipfile
from pathlib import Path

import pytest

from distribution import world as parts
from distribution.world import EDITS, TAGS, UPSTREAM, WHEEL, World, patched, write_lock
from patches_tool.overlay import NOT_FOR_CUDA, package_files
from patches_tool.patchset import FLAVOUR_GROUPS, PatchSet
from releases import PATCHES

pytestmark = pytest.mark.slow

LZ = [name for name in EDITS if not name.startswith("cpu/")]


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("flavour", ["cuda", "cpu"])
def test_same_input_gives_same_bytes(world: World, flavour: str) -> None:
    first = world.build("--flavour", flavour, "--out", "one")
    for file in world.package.rglob("*"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    (world.package / "__pycache__").mkdir(exist_ok=True)
    (world.package / "__pycache__" / "left.pyc").write_bytes(b"over")
    world.env |= {"TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": "7"}
    os.umask(os.umask(0o077) & 0)
    try:
        second = world.build("--flavour", flavour, "--out", "two")
    finally:
        os.umask(0o022)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes.pop("sglang/run.sh") == 0o100755
    assert set(modes.values()) == {0o100644}


@pytest.mark.parametrize(
    ("flavour", "end", "names", "requires"),
    [("cuda", "", LZ, None), ("cpu", ".cpu", list(EDITS), ["torch==2.13.0", "numpy"])],
)
def test_flavour(
    world: World, flavour: str, end: str, names: list[str], requires: list[str] | None
) -> None:
    wheel, version = world.build("--flavour", flavour), f"0.5.23+lz1{end}"
    assert wheel == world.root / "dist" / f"sglang-{version}-{TAGS}.whl"
    files = contents(wheel)
    for path, text in patched(names).items():
        assert files[path] == text.encode() or path == "sglang/_version.py", path
    stamped = files["sglang/_version.py"].decode()
    assert f"= '{version}'\n" in stamped
    assert f"= (0, 5, 23, 'lz1{end}')\n" in stamped
    assert files.get("sgl_kernel/__init__.py") == (b"run = None\n" if end else None)
    info = f"sglang-{version}.dist-info"
    assert {name.split("/")[0] for name in files if ".dist-info" in name} == {info}
    head = email.message_from_bytes(files[f"{info}/METADATA"])
    theirs = email.message_from_string(parts.METADATA)
    assert head["Version"] == version
    assert head.get_all("Requires-Dist") == (requires or theirs.get_all("Requires-Dist"))
    assert head.get_all("Provides-Extra") == (None if requires else ["test"])
    assert head.get_all("License-File") == ["LICENSE", "NOTICE.sglang-lz"]
    assert (head["License"], head.get_payload()) == (theirs["License"], theirs.get_payload())
    record = files.pop(f"{info}/RECORD").decode()
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(record))}
    assert rows.pop(f"{info}/RECORD") == ["", ""]
    assert rows == {name: [parts.record_hash(data), str(len(data))] for name, data in files.items()}
    scripts = files[f"{info}/entry_points.txt"].decode()
    assert "sglang = sglang.cli:main\n" in scripts
    assert "sglang-lz = sglang_lz.cli:main\n" in scripts
    assert "sglang_lz" in files[f"{info}/top_level.txt"].decode().split()
    notice = files[f"{info}/licenses/NOTICE.sglang-lz"].decode()
    changed = [n for n, t in UPSTREAM.items() if n in files and files[n] != t.encode()]
    assert sorted(re.findall(r"^    (\S+)$", notice, re.M)) == sorted(changed)
    assert files["sglang_lz/_patches/0.5.23/series"] == (world.patches / "series").read_bytes()
    assert "sglang_lz/_patches/0.5.23/cpu/stand-in.patch" in files


def test_wrong_hash(world: World) -> None:
    world.wheel.write_bytes(world.wheel.read_bytes() + b"\0")
    sentence = world.fails("build", "--wheel", world.wheel)
    assert "not the pinned" in sentence
    assert "delete it and run again" in sentence


def test_upstream_with_other_contents(world: World) -> None:
    """Even a wheel with the pinned hash is patched only if every blob is the expected one."""
    data = bytearray(world.wheel.read_bytes())
    at = data.index(b"line_20")
    data[at : at + 4] = b"LINE"
    world.wheel.write_bytes(data)
    write_lock(world.patches / "upstream.lock", world.wheel)
    assert "damaged" in world.fails("build", "--wheel", world.wheel)
    files = UPSTREAM | {"sglang/sampler.py": UPSTREAM["sglang/sampler.py"] + "more = 1\n"}
    parts.write_upstream_wheel(world.wheel, files)
    write_lock(world.patches / "upstream.lock", world.wheel)
    assert "sglang/sampler.py is neither" in world.fails("build", "--wheel", world.wheel)


@pytest.mark.parametrize(("signal", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_interrupt_leaves_nothing(world: World, signal: str, status: int) -> None:
    """Ctrl-C or kill while the wheel is written removes what was written."""
    kill = f"os.kill(os.getpid(), signal.{signal})"
    world.hook(parts.at_call("zipfile.ZipFile", "writestr", 5, kill))
    done = world.run("build", "--wheel", world.wheel)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert list((world.root / "dist").iterdir()) == []


def test_pip_fetches_once_and_what_is_cached_is_verified(world: World) -> None:
    assert world.run("build").stdout.splitlines() == [f"dist/sglang-0.5.23+lz1-{TAGS}.whl"]
    assert (world.cache / WHEEL).read_bytes() == world.wheel.read_bytes()
    world.wheel.unlink()
    world.ok("build", "--out", "again")
    (world.cache / WHEEL).write_bytes(b"cut off")
    assert "not the pinned" in world.fails("build")
    (world.cache / WHEEL).unlink()
    assert "pip could not download sglang==0.5.23" in world.fails("build")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--python cp313", "No wheel is pinned for Python cp313"),
        ("--wheel wheels/sglang-0.5.22.whl", "is not a pinned wheel: the patches are for"),
        ("--wheel x --python cp311", "leave --python and --arch out"),
        ("--wheel x --groups sampling", "--groups is 'sampling'; it must be one of"),
    ],
)
def test_arguments(world: World, arguments: str, words: str) -> None:
    assert words in world.fails("build", *arguments.split())


# Which files of our package each flavour carries


def test_cuda_leaves_out_the_reasoner_and_the_cpu_flavour(world: World) -> None:
    both = {"demo/model/config.json", "__init__.py", "startup/seal.py", "seal.json"}
    cpu_only = {"demo/reasoner/config.json", "cpu/requirements.txt"}
    for flavour, there in (("cuda", both), ("cpu", both | cpu_only)):
        names = contents(world.build("--flavour", flavour)).keys()
        found = {name.removeprefix("sglang_lz/") for name in names}
        assert found & (both | cpu_only) == there


def uses_of_left_out(flavour: str) -> set[str]:
    """Which files and patches of a flavour import from a folder of `NOT_FOR_CUDA`."""
    texts = package_files(flavour, FLAVOUR_GROUPS[flavour])
    texts = {name: text for name, text in texts.items() if name.endswith(".py")}
    for patch in PatchSet.load(PATCHES).select(FLAVOUR_GROUPS[flavour]).patches:
        texts[patch.name] = b"\n".join(re.findall(rb"^\+(.*)", patch.data, re.M))
    inside = (path.removeprefix("sglang_lz/").strip("/") for path in NOT_FOR_CUDA)
    left_out = "|".join(path.replace("/", "[.]") for path in inside)
    from_where = r"^\s*(?:from|import) (?:\.+|sglang_lz\.)"
    names = r"^\s*from (?:\.+(?:demo)?|sglang_lz(?:\.demo)?) import .*\b(?:cpu|reasoner)\b"
    uses = re.compile(rf"{from_where}(?:{left_out})\b|{names}", re.M)
    return {name for name, text in texts.items() if uses.search(text.decode())}


def test_nothing_in_cuda_uses_what_is_left_out() -> None:
    assert "cpu/environment.patch" in uses_of_left_out("cpu")
    assert uses_of_left_out("cuda") == set()
    files = package_files("cuda", FLAVOUR_GROUPS["cuda"])
    assert {"lz_penalty/kernels/cpu.py", "sglang_lz/demo/model/config.json"} <= files.keys()
