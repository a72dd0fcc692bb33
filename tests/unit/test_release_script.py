"""scripts/release: its environment, and the keys it makes. What it makes is tested in
tests/distribution/test_release.py."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import minisign
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
script = importlib.import_module("_release")
making = importlib.import_module("_make_release")
SetupError = importlib.import_module("_environment").SetupError


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s\\]+)", path.read_text(), re.M))


def test_the_tests_use_what_makes_a_release() -> None:
    tested = pins(ROOT / "scripts" / "requirements-test.txt")
    used = pins(ROOT / "scripts" / "release.lock")
    common = tested.keys() & used.keys()
    assert common >= {"cyclonedx-python-lib", "py-minisign"}
    assert {name: used[name] for name in common} == {name: tested[name] for name in common}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run, and nothing of it runs; the last is what takes the script's place."""
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> int:
        ran.append(command)
        (tmp_path / "venv" / "bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "venv" / "bin" / "python").touch()
        return 0

    def execve(path: Path, command: list[str], env: dict[str, str]) -> None:
        assert env["PYTHONPATH"] == str(tmp_path / "python")
        ran.append(command)

    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "CACHE", tmp_path)
    monkeypatch.setattr(script, "FOLDER", tmp_path / "venv")
    monkeypatch.setattr(script, "REQUIREMENTS", tmp_path / "release.lock")
    monkeypatch.setattr(script._supervise, "run", run)
    monkeypatch.setattr(os, "execve", execve)
    (tmp_path / "release.lock").write_text("package==1\n")
    return ran


def test_the_environment_is_made_when_the_lock_changed(
    commands: list[list[str]], tmp_path: Path
) -> None:
    script.release(["--only", "cpu"])
    venv, install, made = commands
    assert venv[1:3] == ["-m", "venv"]
    assert "--require-hashes" in install
    assert install[-1] == str(tmp_path / "release.lock")
    assert made[0] == str(tmp_path / "venv" / "bin" / "python")
    assert made[2:] == [str(tmp_path / "scripts" / "_make_release.py"), "--only", "cpu"]
    script.release(["--only", "cpu"])
    assert commands[3:] == [made]
    (tmp_path / "release.lock").write_text("package==2\n")
    script.release([])
    assert [command[1:3] for command in commands[4:6]] == [["-m", "venv"], ["-m", "pip"]]


def test_an_environment_that_could_not_be_made(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script._supervise, "run", lambda *_, **__: 1)
    with pytest.raises(SetupError, match="could not be made"):
        script.release([])
    assert commands == []


@pytest.mark.parametrize("argument", ["-h", "--wrong"])
def test_the_manual_needs_no_environment(commands: list[list[str]], argument: str) -> None:
    with pytest.raises(SystemExit):
        script.release([argument])
    assert commands == []


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is typed where a password is asked for."""
    typed: list[str] = []
    monkeypatch.delenv(script.PASSWORD, raising=False)
    monkeypatch.setattr(making.getpass, "getpass", lambda _: typed.pop(0))
    monkeypatch.setattr(making, "OPSLIMIT", 32_768)  # the real ones take a second and 1 GiB
    monkeypatch.setattr(making, "MEMLIMIT", 1_048_576)
    monkeypatch.setattr(making.signal, "signal", lambda *_: None)
    return typed


def test_a_new_key_has_the_password_that_was_typed(answers: list[str], tmp_path: Path) -> None:
    answers += ["horse", "horse"]
    assert making.make_release(["--new-key", str(tmp_path / "a.key")]) == 0
    key = minisign.SecretKey.from_file(tmp_path / "a.key")
    assert key.is_encrypted()
    key.decrypt("horse")
    public = minisign.PublicKey.from_file(tmp_path / "a.key.pub")
    public.verify(b"data", key.sign(b"data"))


def test_two_passwords_make_no_key(answers: list[str], tmp_path: Path) -> None:
    answers += ["horse", "house"]
    with pytest.raises(SetupError, match="the two passwords differ"):
        making.make_release(["--new-key", str(tmp_path / "a.key")])
    assert list(tmp_path.iterdir()) == []


def test_every_flavour_of_every_pinned_wheel_is_made() -> None:
    everything = making._targets(None)
    names = [target.filename for target in everything]
    assert len(set(names)) == len(names)
    for python in making.PYTHONS:
        for arch in making.ARCHES:
            assert sum(f"-{python}-" in name and f"_{arch}.whl" in name for name in names) % 2 == 0
            assert making._targets(f"{arch},{python}") == [
                target
                for target in everything
                if (target.pin.python, target.pin.arch) == (python, arch)
            ]
    (one,) = making._targets("cp311,x86_64,cpu")
    version = f"{one.lock.version}+lz{one.lock.revision}.cpu"
    assert one.filename == f"sglang-{version}-cp311-cp311-manylinux_2_34_x86_64.whl"
