"""scripts/serve, test and format: their decisions, and that they leave no process behind."""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
AS_SCRIPTS = os.pathsep.join(map(str, (SCRIPTS, SCRIPTS.parent / "python")))
"""The PYTHONPATH of what imports scripts where no sglang_lz is installed, as their users do."""
sys.path.insert(0, str(SCRIPTS))
environment: Any = importlib.import_module("_environment")
run_tests: Any = importlib.import_module("_test")
tools: Any = importlib.import_module("_tools")

PATIENCE_SECONDS = 60


def put(folder: Path, name: str, script: str) -> Path:
    """A program of the shell."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


# Which Python runs the scripts


def run_with(folder: Path, python: str = "") -> tuple[int, str, str]:
    """Status, output and errors of `run script.py a "b c"` where only `folder` has programs."""
    command = ["/bin/sh", "-c", f". {SCRIPTS}/_python.sh; run script.py a 'b c'"]
    env = {"PATH": str(folder), "PYTHON": python}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


FITS = 'case "$*" in *import*|*exit*) ;; *) echo "$0 $*" ;; esac'
TOO_OLD = "exit 1"
HAS_NO_VENV = 'case "$*" in *ensurepip*) exit 1 ;; *print*) echo 3.12 ;; esac'


def test_the_first_python_that_fits_runs_the_script(tmp_path: Path) -> None:
    put(tmp_path, "python3.12", TOO_OLD)
    put(tmp_path, "python3.11", HAS_NO_VENV)
    fits, mine = put(tmp_path, "python3", FITS), put(tmp_path, "mine", FITS)
    assert run_with(tmp_path) == (0, f"{fits} -B script.py a b c", "")
    assert run_with(tmp_path, str(mine)) == (0, f"{mine} -B script.py a b c", "")


@pytest.mark.parametrize(
    ("script", "mine", "sentence"),
    [
        (TOO_OLD, "", "no Python 3.11, 3.12 or 3.13 found; install one"),
        (TOO_OLD, "python3", "PYTHON=python3 is not a Python 3.11, 3.12 or 3.13"),
        (HAS_NO_VENV, "", "apt-get install python3.12-venv"),
    ],
)
def test_no_python_is_one_sentence(tmp_path: Path, script: str, mine: str, sentence: str) -> None:
    put(tmp_path, "python3", script)
    status, output, errors = run_with(tmp_path, mine)
    assert (status, output) == (1, "")
    assert sentence in errors
    assert len(errors.splitlines()) == 1


# What scripts/test runs


class Calls:
    """The steps of scripts/test, without running them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set_up: dict[str, bool] = {}
        self.tools: list[Any] = []
        self.commands: list[list[str]] = []
        self.env: dict[str, str] = {}
        self.status = 0
        patch = monkeypatch.setattr
        patch(environment.Environment, "set_up", lambda _, **options: self.set_up.update(options))
        patch(tools, "install", self.tools.extend)
        patch(environment._supervise, "run", self.run)

    def run(self, command: list[str], *, env: dict[str, str], cwd: Path) -> int:
        self.commands.append(command[2:])
        self.env = env
        return self.status


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.parametrize(
    "case",
    [
        ("full", "passed", True),
        ("full", "failed", False),
        ("full", "passed with changes", False),
        ("full -k window", "passed", False),
        ("all", "passed", False),
    ],
)
def test_a_commit_that_passed_whole_is_recorded(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: tuple[str, str, bool]
) -> None:
    """Which scripts/release asks for (tests/distribution/test_release.py)."""
    arguments, outcome, is_recorded = case
    calls.status = int(outcome == "failed")
    record, checkout = tmp_path / "full", tmp_path / "checkout"
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    if outcome == "passed with changes":
        (checkout / "change").write_text("")
    monkeypatch.setattr(run_tests, "FULL", record)
    monkeypatch.setattr(run_tests, "ROOT", checkout)
    assert run_tests.test(arguments.split()) == calls.status
    recorded = record.read_text() if record.exists() else ""
    assert recorded == (head.stdout.strip() if is_recorded else "")


def test_a_machine_without_a_gpu_is_told(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_LZ_FLAVOUR", "cpu")
    with pytest.raises(environment.SetupError, match="needs an NVIDIA GPU"):
        run_tests.test(["gpu"])
    assert calls.commands == []


# Which steps of set-up


class Recorded:
    """Steps that note in `done` that they ran."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.done: list[str] = []
        monkeypatch.setattr(environment, "CACHE", folder)

    def step(self, name: str, made_from: str = "1", *, fails: bool = False, **options: Any) -> Any:
        def action() -> None:
            self.done.append(name)
            if fails:
                raise environment.SetupError("no network")

        return environment.Step(name, self.folder / "stamps" / name, made_from, action, **options)

    def do(self, *steps: Any) -> str:
        """What ran so far, after these steps."""
        environment.do_steps(list(steps))
        return "".join(self.done)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(tmp_path, monkeypatch)


def test_a_step_is_done_again_when_its_inputs_changed(recorded: Recorded) -> None:
    first, made = recorded.step("a"), recorded.folder / "made"
    assert recorded.do(first, recorded.step("b")) == "ab"
    assert recorded.do(first, recorded.step("b")) == "ab"
    assert recorded.do(first, recorded.step("b", "2")) == "abb"
    # A step may undo later ones, as making the environment anew does.
    remade = environment.Step("a", first.stamp, "2", (recorded.folder / "stamps" / "b").unlink)
    assert recorded.do(remade, recorded.step("b", "2")) == "abbb"
    made.touch()
    assert recorded.do(recorded.step("b", "2", made=made)) == "abbb"
    made.unlink()
    assert recorded.do(recorded.step("b", "2", made=made)) == "abbbb"


def test_an_interrupted_step_is_done_again(recorded: Recorded) -> None:
    assert recorded.do(recorded.step("a")) == "a"
    with pytest.raises(environment.SetupError):
        recorded.do(recorded.step("a", "2", fails=True))
    # Back to the inputs of before: what is there now is not what they made.
    assert recorded.do(recorded.step("a", "1")) == "aaa"


def test_two_processes_do_not_set_up_at_once(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    with (recorded.folder / "setup.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = threading.Thread(target=recorded.do, args=(recorded.step("a"),))
        waiting.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "waiting for another" not in capsys.readouterr().err:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert recorded.done == []
        recorded.step("a").do()
    waiting.join(timeout=PATIENCE_SECONDS)
    assert recorded.done == ["a"]  # by the other one


def test_each_input_repeats_the_steps_that_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROOT", "PATCHES", "CPU", "CPU_REQUIREMENTS", "SCRIPTS", "TEST_TOOLS",
                 "TEST_LOCK", "UV", "CACHE"):  # fmt: skip
        place = tmp_path / getattr(environment, name).relative_to(SCRIPTS.parent)
        monkeypatch.setattr(environment, name, place)
    files = {
        "scripts/uv.lock": "uv",
        "scripts/requirements-test.txt": "tools",
        "scripts/test.lock": "environment tools",
        "patches/1.0/upstream.lock": "environment package stock",
        "python/sglang_lz/cpu/requirements.txt": "environment package stock",
        "patches/1.0/cpu/a.patch": "package stock",
        "patches/1.0/series": "package",
        "python/sglang_lz/a.py": "package",
    }
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setenv("CXX", "c++")
    found: list[Any] = []
    monkeypatch.setattr(environment, "do_steps", found.extend)

    def steps(**options: bool) -> dict[str, Any]:
        found.clear()
        environment.Environment("cpu").set_up(tests=True, **options)
        names = ("uv", "environment", "package", "tools", "stock")
        return dict(zip(names, found, strict=True))

    def inputs() -> dict[str, str]:
        return {name: step.made_from for name, step in steps().items()}

    for file, dependent in files.items():
        before = inputs()
        (tmp_path / file).write_text("changed")
        after = inputs()
        assert {name for name in after if after[name] != before[name]} == set(dependent.split())
    before = inputs()
    monkeypatch.setattr(environment, "VERSION", "3.99")
    assert set(inputs().values()).isdisjoint(before.values())
    # A changed package needs no wheel where the checkout's is imported; a changed patch does.
    package = steps()["package"]
    package.stamp.parent.mkdir(parents=True)
    package.stamp.write_text(package.made_from)
    (tmp_path / "python" / "sglang_lz" / "a.py").write_text("changed again")
    assert steps(package_of_checkout=True)["package"].is_done()
    assert not steps()["package"].is_done()
    (tmp_path / "patches" / "1.0" / "series").write_text("changed again")
    assert not steps(package_of_checkout=True)["package"].is_done()


def test_uv_has_the_settings_of_pip() -> None:
    listed = """\
:env:.find-links='/wheels'
global.cert='/ca.crt'
global.extra-index-url='\\nfile:///a\\nfile:///b'
global.find-links='/other'
install.no-compile='true'
global.timeout='60'"""
    assert environment.uv_settings(listed) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels",
        "UV_INDEX": "file:///a file:///b",
        "SSL_CERT_FILE": "/ca.crt",
        "UV_HTTP_TIMEOUT": "60",
    }


# Nothing outside the checkout


def test_a_path_too_long_for_sockets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "CACHE", tmp_path / ("long" * 30))
    with (
        pytest.raises(environment.SetupError, match=r"\d+ bytes too long for the Unix sockets"),
        environment.temporary_folder(),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def program(arguments: list[str]) -> int:
        raise environment.SetupError("no network.")

    with pytest.raises(SystemExit) as ended:
        environment.main(program)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "sglang-lz: no network.\n"


def test_numba_caches_of_a_package_are_removed_when_sources_change(tmp_path: Path) -> None:
    """Numba looks at the time of a function's own file."""
    names = ("compiled.py", "fields/lz.py", "penalty/window.py", "penalty/kernels/cpu.py")
    compiled, others = [tmp_path / name for name in names], [tmp_path / "server/launch.py"]
    for source in (*compiled, *others):
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("")

    def times(sources: list[Path]) -> set[float]:
        return {source.stat().st_mtime for source in sources}

    def dated() -> float:
        environment.date_by_contents(tmp_path)
        (time,) = times(compiled)
        return time

    found = {dated(), dated()}
    for source in compiled:
        source.write_text("SIZE = 2")
        found.add(dated())
    assert len(found) == 1 + len(compiled)
    others[0].write_text("SIZE = 2")
    assert dated() in found
    assert times(others).isdisjoint(found)


# Nothing left running

SUPERVISOR = """
import os, signal, sys
from pathlib import Path
import _supervise
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
try:
    command = [sys.executable, "-c", sys.argv[1]]
    sys.exit(_supervise.run(command, env=os.environ, cwd=Path.cwd(), grace=0.5))
except _supervise.Ended as ended:
    sys.exit(ended.status)
"""

FAMILY = """
import os, signal, subprocess, sys, time
polite = {polite}
if not polite:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
pids = [os.getpid()]
for own_session in (False, True):
    pids.append(subprocess.Popen(["sleep", "600"], start_new_session=own_session).pid)
print(*pids, flush=True)
{then}
"""
FOREVER = "time.sleep(600)"


def start(then: str = FOREVER, *, polite: bool = True) -> tuple[subprocess.Popen[str], list[int]]:
    """A supervisor of a child with two children, one in a session of its own, and their pids."""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, FAMILY.format(polite=polite, then=then)],
        env=os.environ | {"PYTHONPATH": AS_SCRIPTS},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert supervisor.stdout is not None
    pids = [int(pid) for pid in supervisor.stdout.readline().split()]
    assert len(pids) == 3
    return supervisor, pids


def running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before we looked, or while we did
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(map(running, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if running(pid)]
        time.sleep(0.05)


@pytest.mark.parametrize("polite", [True, False])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(signum: signal.Signals, polite: bool) -> None:
    supervisor, pids = start(polite=polite)
    supervisor.send_signal(signum)
    assert supervisor.wait(timeout=PATIENCE_SECONDS) == 128 + signum
    assert [pid for pid in pids if running(pid)] == []


def test_leftover_processes_of_a_child_are_ended() -> None:
    supervisor, pids = start(then="sys.exit(7)")
    assert supervisor.wait(timeout=PATIENCE_SECONDS) == 7
    assert [pid for pid in pids if running(pid)] == []
