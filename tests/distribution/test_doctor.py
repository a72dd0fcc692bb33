"""`doctor` says ok to what is whole, and names what is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from distribution.world import Change, World, append, remove, replace
from sglang_lz.startup import seal

pytestmark = pytest.mark.slow

SEAL = "sglang_lz/seal.json"
PATCHES = "sglang_lz/_patches/0.5.23"
READ = "seal.json cannot be read"


def rival(name: str) -> Change:
    def install(root: Path) -> None:
        info = root / f"{name}-0.4.10.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")

    return install


DAMAGE = {
    "no seal": (remove(SEAL), "seal", "this is a stock sglang"),
    "seal without files": (replace(SEAL, '"files": {', '"files": 5, "others": {'), "seal", READ),
    "seal of a list": (replace(SEAL, '"files": {', '"files": ["a"], "patches": {'), "seal", READ),
    "patched file edited": (append("sglang/sampler.py", "#\n"), "files", "sglang/sampler.py was"),
    "patch gone": (remove(f"{PATCHES}/cpu/stand-in.patch"), "files", "stand-in.patch is missing"),
    "other series": (
        replace(f"{PATCHES}/series", "cpu/stand-in.patch", ""),
        *("files", "series was changed after it was sealed"),
    ),
    "other metadata": (
        replace("sglang-*.dist-info/METADATA", "Version: 0.5.23+lz1", "Version: 0.5.23+lz2"),
        *("version", "METADATA says 0.5.23+lz2.cpu, the seal 0.5.23+lz1.cpu"),
    ),
    "rival": (rival("sglang_kernel"), "rival packages", "sglang-kernel is installed"),
    "library": (rival("lz_penalty"), "rival packages", "lz-penalty is installed over ours"),
}


@pytest.fixture(scope="session")
def installed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CPU flavour wheel, installed."""
    world = World(tmp_path_factory.mktemp("installed") / "world")
    shutil.copytree(template, world.root)
    return world.site(world.build("--flavour", "cpu"))


@pytest.fixture
def site(installed: Path, tmp_path: Path) -> Path:
    shutil.copytree(installed, tmp_path / "site")
    return tmp_path / "site"


def failures(world: World, **options: Path) -> dict[str, str]:
    """Run the doctor; return its FAIL lines; the status must fit them."""
    done = world.run("doctor", **options)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(line.startswith(("ok    ", "FAIL  ")) for line in lines)
    failed = [line[6:].split(": ", 1) for line in lines if line.startswith("FAIL")]
    assert done.returncode == (1 if failed else 0)
    return dict(failed)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage(world: World, site: Path, damage: str) -> None:
    change, check, words = DAMAGE[damage]
    change(site)
    assert words in failures(world, path=site)[check]


def test_second_sglang_lz(world: World, site: Path) -> None:
    """A checkout on the path shadows the installed package."""
    world.env["PYTHONPATH"] = f"{world.package.parent}:{site}"
    assert "not from" in failures(world)["sglang_lz"]


def test_start_up_check(world: World, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server calls: the same findings, for the sglang that is imported."""
    sglang = ModuleType("sglang")
    sglang.__file__ = str(site / "sglang" / "__init__.py")
    monkeypatch.setattr(seal, "__file__", str(site / "sglang_lz" / "startup" / "seal.py"))
    assert seal.verify_imported(sglang) == []
    append("sglang/sampler.py", "#\n")(site)
    assert seal.verify_imported(sglang) == ["sglang/sampler.py was changed after it was sealed"]
    remove(SEAL)(site)
    assert "is missing" in seal.verify_imported(sglang)[0]
    sglang.__file__ = str(site / "copy" / "sglang" / "__init__.py")
    assert seal.verify_imported(sglang) == [
        f"sglang is imported from {site / 'copy'}, not from {site}, which is ours"
    ]
