"""scripts/serve, test and format: set-up, refusals, and that they leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import _environment as environment
import _supervise
import _test as run_tests
import _tools

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("case", ["full", "full failed", "full changed", "full -k window", "all"])
def test_only_a_commit_that_passed_whole_is_recorded(
    monkeypatch: Patch, tmp_path: Path, case: str
) -> None:
    """scripts/release signs no other (tests/distribution/test_release.py)."""
    status, record, checkout = int("failed" in case), tmp_path / "full", tmp_path / "checkout"
    subprocess.run(["git", "init", "-q", checkout], check=True)
    git = ["git", "-C", checkout, "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    if "changed" in case:
        (checkout / "change").touch()
    monkeypatch.setattr(environment.Environment, "set_up", lambda *_, **__: None)
    monkeypatch.setattr(_tools, "install", lambda _: None)
    monkeypatch.setattr(_supervise, "run", lambda *_, **__: status)
    monkeypatch.setattr(run_tests, "FULL", record)
    monkeypatch.setattr(run_tests, "ROOT", checkout)
    arguments = case.removesuffix(" failed").removesuffix(" changed").split()
    assert run_tests.test(arguments) == status
    assert (record.read_text() if record.exists() else "") == (head if case == "full" else "")


@pytest.fixture
def done(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    """The steps of set-up that ran."""
    monkeypatch.setattr(environment, "CACHE", tmp_path)
    return []


def step(done: list[str], name: str, made_from: str = "1", made: Path = ROOT) -> environment.Step:
    stamp = environment.CACHE / name
    return environment.Step(name, stamp, made_from, partial(done.append, name), made)


def test_a_step_is_done_again_when_inputs_changed_or_it_was_interrupted(done: list[str]) -> None:
    def all_done(*steps: environment.Step) -> str:
        environment.do_steps([*steps])
        return "".join(done)

    assert all_done(step(done, "a"), step(done, "b")) == "ab"
    assert all_done(step(done, "a"), step(done, "b")) == "ab"
    assert all_done(step(done, "a"), step(done, "b", "2")) == "abb"
    # A step may undo later ones, as making the environment anew does.
    stamp, made = environment.CACHE / "b", environment.CACHE / "made"
    undoes = environment.Step("a", environment.CACHE / "a", "2", stamp.unlink)
    assert all_done(undoes, step(done, "b", "2")) == "abbb"
    made.touch()
    assert all_done(step(done, "b", "2", made)) == "abbb"
    made.unlink()
    assert all_done(step(done, "b", "2", made)) == "abbbb"
    with pytest.raises(ZeroDivisionError):
        all_done(environment.Step("b", stamp, "3", lambda: print(1 / 0)))
    # Back to the inputs of before: what is there now is not what they made.
    assert all_done(step(done, "b", "2")) == "abbbbb"


def test_each_input_repeats_the_steps_that_depend_on_it(tmp_path: Path, monkeypatch: Patch) -> None:
    for name, place in [*vars(environment).items()]:
        if isinstance(place, Path):
            monkeypatch.setattr(environment, name, tmp_path / place.relative_to(ROOT))
    dependent = {
        "scripts/uv.lock": {"uv"},
        "scripts/requirements-test.txt": {"tools"},
        "scripts/test.lock": {"environment", "tools"},
        "patches/1.0/upstream.lock": {"environment", "package", "stock"},
        "python/sglang_lz/cpu/requirements.txt": {"environment", "package", "stock"},
        "patches/1.0/cpu/a.patch": {"package", "stock"},
        "patches/1.0/series": {"package"},
        "python/sglang_lz/a.py": {"package"},
        "scripts/patches_tool/a.py": {"package"},
    }
    for name in dependent:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setenv("CXX", "c++")
    found: list[list[environment.Step]] = []
    monkeypatch.setattr(environment, "do_steps", found.append)

    def steps(**options: bool) -> dict[str, environment.Step]:
        environment.Environment("cpu").set_up(tests=True, **options)
        names = ("uv", "environment", "package", "tools", "stock")
        return dict(zip(names, found[-1], strict=True))

    for name, expected in dependent.items():
        before = steps()
        (tmp_path / name).write_text("changed")
        changed = {key for key, step in steps().items() if step.made_from != before[key].made_from}
        assert changed == expected
    before = steps()
    monkeypatch.setattr(environment, "VERSION", "3.99")
    assert all(step.made_from != before[key].made_from for key, step in steps().items())
    # A changed package needs no wheel where the checkout's is imported; a changed patch does.
    package = steps()["package"]
    package.stamp.parent.mkdir(parents=True)
    package.stamp.write_text(package.made_from)
    (tmp_path / "python/sglang_lz/a.py").write_text("changed again")
    assert steps(package_of_checkout=True)["package"].is_done()
    assert not steps()["package"].is_done()
    (tmp_path / "patches/1.0/series").write_text("changed again")
    assert not steps(package_of_checkout=True)["package"].is_done()


SUPERVISOR = """
import os, signal, sys, _environment, _supervise
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
command, grace = [sys.executable, "-c", sys.argv[1]], float(sys.argv[2])
_environment.main(lambda _: _supervise.run(command, env=os.environ, cwd=".", grace=grace))
"""
FAMILY = """
import os, signal, subprocess, sys, time
for signum in {ignored}:
    signal.signal(signum, signal.SIG_IGN)
sleeps = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (False, True)]
print(os.getpid(), *(sleep.pid for sleep in sleeps), flush=True)
{then}
"""


def test_a_server_with_another_home_asks_the_index_that_its_user_set(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(environment, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_CONFIG_HOME", "PIP_CONFIG_FILE"):  # `scripts/test` sets the second
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://of.invalid\n")
    env = environment.Environment("cpu").variables()
    listed = [sys.executable, "-m", "pip", "config", "list"]
    assert "https://of.invalid" in subprocess.check_output(listed, env=env, text=True)


@pytest.mark.parametrize("ignored", [(), (2, 15)], ids=["polite", "stubborn"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, None])
def test_everything_that_was_started_ends(signum: int | None, ignored: tuple[int, ...]) -> None:
    """At a signal, or when the child itself ends: also what has a session of its own."""
    family = FAMILY.format(ignored=ignored, then="time.sleep(600)" if signum else "sys.exit(7)")
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, family, "0.5" if ignored else "600"],
        # As users start the scripts: no sglang_lz is installed there.
        env=os.environ | {"PYTHONPATH": f"{ROOT}/scripts:{ROOT}/python"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert supervisor.stdout is not None
    pids = supervisor.stdout.readline().decode().split()
    assert len(pids) == 3
    if signum:
        supervisor.send_signal(signum)
    assert supervisor.wait(timeout=PATIENCE_SECONDS) == (128 + signum if signum else 7)
    assert [pid for pid in pids if Path("/proc", pid).exists()] == []
