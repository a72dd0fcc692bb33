"""The decisions of scripts/serve, test and format, and that they leave no process behind."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import numba_cache

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
AS_SCRIPTS = os.pathsep.join(map(str, (SCRIPTS, SCRIPTS.parent / "python")))
"""The PYTHONPATH of what imports scripts where no sglang_lz is installed, as their users do."""
sys.path.insert(0, str(SCRIPTS))
environment = importlib.import_module("_environment")
serve = importlib.import_module("_serve")
format_code = importlib.import_module("_format")
run_tests = importlib.import_module("_test")
tools = importlib.import_module("_tools")

PATIENCE_SECONDS = 60

# Which Python runs the scripts


def fake_python(folder: Path, name: str, *, version_fits: bool = True, venv: bool = True) -> Path:
    """An executable that answers the questions of _python.sh and says how it was called."""
    path = folder / name
    path.write_text(
        textwrap.dedent(
            f"""\
            #!/bin/sh
            case "$*" in
                *"import ensurepip"*) exit {int(not venv)} ;;
                *"sys.exit("*) exit {int(not version_fits)} ;;
                *"print("*) echo 3.12 ;;
                *) echo "{name} $*" ;;
            esac
            """
        )
    )
    path.chmod(0o755)
    return path


def run_with(folder: Path, python: str | None = None) -> tuple[int, str, str]:
    """Status, output and errors of `run script.py a "b c"` where only `folder` has programs."""
    env = {"PATH": str(folder)} | ({"PYTHON": python} if python else {})
    result = subprocess.run(
        ["/bin/sh", "-c", f". {SCRIPTS}/_python.sh; run script.py a 'b c'"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout.strip(), result.stderr.strip()


def test_the_first_python_that_fits_runs_the_script(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3.12", version_fits=False)  # such as a version manager's shim
    fake_python(tmp_path, "python3.11")
    fake_python(tmp_path, "python3")
    assert run_with(tmp_path) == (0, "python3.11 -B script.py a b c", "")


def test_a_python_without_venv_is_passed_over(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3.12", venv=False)
    fake_python(tmp_path, "python3.13")
    assert run_with(tmp_path) == (0, "python3.13 -B script.py a b c", "")


def test_the_users_python_wins(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3.12")
    mine = fake_python(tmp_path, "mine")
    assert run_with(tmp_path, str(mine)) == (0, "mine -B script.py a b c", "")


@pytest.mark.parametrize(
    ("pythons", "mine", "sentence"),
    [
        ({}, None, "no Python 3.11, 3.12 or 3.13 found; install one"),
        ({"python3": {"version_fits": False}}, None, "no Python 3.11, 3.12 or 3.13 found"),
        (
            {"python3": {}, "old": {"version_fits": False}},
            "old",
            "PYTHON=old is not a Python 3.11, 3.12 or 3.13",
        ),
        ({"python3.12": {"venv": False}}, None, "apt-get install python3.12-venv"),
    ],
)
def test_no_python_is_one_sentence(
    tmp_path: Path, pythons: dict[str, dict[str, bool]], mine: str | None, sentence: str
) -> None:
    for name, answers in pythons.items():
        fake_python(tmp_path, name, **answers)
    status, output, errors = run_with(tmp_path, mine)
    assert (status, output) == (1, "")
    assert sentence in errors
    assert len(errors.splitlines()) == 1


# Which flavour


def test_the_users_flavour_wins(tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    assert environment.detect_flavour({"SGLANG_LZ_FLAVOUR": "cpu"}, tmp_path) == "cpu"


def test_a_loaded_driver_means_cuda(tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    assert environment.detect_flavour({"PATH": ""}, tmp_path) == "cuda"


@pytest.mark.parametrize(("status", "flavour"), [(0, "cuda"), (9, "cpu")])
def test_nvidia_smi_is_asked_where_there_is_no_driver_folder(
    tmp_path: Path, status: int, flavour: str
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nexit {status}\n")
    smi.chmod(0o755)
    assert environment.detect_flavour({"PATH": str(tmp_path)}, tmp_path / "absent") == flavour


def test_without_a_gpu_it_is_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "gpus").mkdir()
    assert environment.detect_flavour({"PATH": str(tmp_path)}, tmp_path / "gpus") == "cpu"


def test_another_flavour_is_refused() -> None:
    with pytest.raises(environment.SetupError, match="SGLANG_LZ_FLAVOUR is 'tpu'; it must be"):
        environment.detect_flavour({"SGLANG_LZ_FLAVOUR": "tpu"})


# Which arguments


@pytest.mark.parametrize(
    ("arguments", "flavour", "rest"),
    [
        (["--port", "1"], None, ["--port", "1"]),
        (["--flavour", "cpu", "--tp", "2"], "cpu", ["--tp", "2"]),
        (["--tp", "2", "--flavour=cuda"], "cuda", ["--tp", "2"]),
        (["--flavour"], "", []),
    ],
)
def test_split_option(arguments: list[str], flavour: str | None, rest: list[str]) -> None:
    assert environment.split_option("--flavour", arguments) == (flavour, rest)


@pytest.mark.parametrize(
    ("arguments", "mode", "rest"),
    [
        ([], "default", []),
        (["quick"], "quick", []),
        (["all", "-x"], "all", ["-x"]),
        (["full"], "full", []),
        (["containers", "-s"], "containers", ["-s"]),
        (["quick", "tests/unit"], "quick", ["tests/unit"]),
        (["-k", "tests/unit"], "default", ["-k", "tests/unit"]),
        (["tests/unit", "-k", "quick"], "named", ["tests/unit", "-k", "quick"]),
        (["-xq", "tests/unit/test_a.py::b"], "named", ["-xq", "tests/unit/test_a.py::b"]),
        (["-n0", "--pdb", "tests/unit"], "named", ["-n0", "--pdb", "tests/unit"]),
        (["--tb=short", "tests/unit"], "named", ["--tb=short", "tests/unit"]),
        (["-n", "0", "--lf", "tests/unit"], "named", ["-n", "0", "--lf", "tests/unit"]),
        (["--ignore", "tests/server"], "default", ["--ignore", "tests/server"]),
    ],
)
def test_split_mode(arguments: list[str], mode: str, rest: list[str]) -> None:
    assert run_tests.split_mode(arguments) == (mode, rest)


class Calls:
    """What scripts/test does, instead of doing it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set_up: dict[str, bool] = {}
        self.tools: list[Any] = []
        self.commands: list[list[str]] = []
        self.env: dict[str, str] = {}
        self.status = 0
        monkeypatch.setattr(
            environment.Environment, "set_up", lambda _, **options: self.set_up.update(options)
        )
        monkeypatch.setattr(tools, "install", self.tools.extend)
        monkeypatch.setattr(environment._supervise, "run", self.run)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})

    def run(self, command: list[str], *, env: dict[str, str], cwd: Path) -> int:
        self.commands.append(command[2:])
        self.env = env
        return self.status


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "from_checkout", "parallel", "wanted"),
    [
        (["tests/unit/test_window.py", "-k", "history"], True, False, []),
        (["tests/unit/test_window.py::test_a"], True, False, []),
        (["tests/unit"], True, True, []),
        (["tests/unit/test_window.py", "tests/unit/test_params.py"], True, True, []),
        (["tests/unit/test_window.py", "tests/patches"], False, True, []),
        (["tests/unit/../patches/test_gate.py"], False, False, []),
        (["tests/deploy/test_cpu_image.py"], False, False, [tools.IMAGE_TOOLS]),
    ],
)
def test_named_tests_run_and_nothing_else(
    calls: Calls,
    arguments: list[str],
    from_checkout: bool,
    parallel: bool,
    wanted: list[Any],
) -> None:
    assert run_tests.test(arguments) == 0
    (pytest_alone,) = calls.commands
    assert pytest_alone[0] == "pytest"
    assert pytest_alone[-len(arguments) :] == arguments
    assert ("-n" in pytest_alone) == parallel
    assert calls.env.get("PYTHONPATH") == (f"{tools.ROOT}/python" if from_checkout else None)
    wanted_options = {"tests": True, "clients": False, "package_of_checkout": from_checkout}
    assert calls.set_up == wanted_options
    assert calls.tools == wanted


@pytest.mark.parametrize(
    "arguments", [[], ["all"], ["full", "-x"], ["quick"], ["quick", "tests/unit"]]
)
def test_whole_runs_check_style_and_types_and_the_wheel(calls: Calls, arguments: list[str]) -> None:
    assert run_tests.test(arguments) == 0
    pytest_alone = ["pytest", f"--basetemp={environment.CACHE / 'pytest'}"]
    tests = [[run_tests.COMPILE], pytest_alone]
    assert [command[:2] for command in calls.commands] == [
        ["ruff", "check"],
        ["ruff", "format"],
        ["mypy"],
        ["sglang_lz", "check"],
        ["sglang_lz", "doctor"],
        *tests,
    ]
    assert "-n" in calls.commands[-1]
    assert "PYTHONPATH" not in calls.env
    clients = bool({"all", "full"} & {*arguments})
    assert calls.set_up == {"tests": True, "clients": clients, "package_of_checkout": False}


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        (["full"], "passed"),
        (["full"], "failed"),
        (["full"], "passed with changes"),
        (["full"], "passed while a commit was made"),
        (["full"], "passed without a repository"),
        (["full", "-k", "window"], "passed"),
        (["all"], "passed"),
    ],
)
def test_a_commit_that_passed_whole_is_recorded(
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    outcome: str,
) -> None:
    """Which scripts/release asks for (tests/distribution/test_release.py)."""
    calls.status = int(outcome == "failed")
    record = tmp_path / "full"
    monkeypatch.setattr(run_tests, "FULL", record)
    checkout = tmp_path / "checkout"
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    commit = [*git, "commit", "-q", "--allow-empty", "-m", "x"]
    subprocess.run(commit, check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    if outcome == "passed with changes":
        (checkout / "change").write_text("")
    elif outcome == "passed while a commit was made":
        monkeypatch.setattr(tools, "install", lambda _: subprocess.run(commit, check=True))
    elif outcome == "passed without a repository":
        shutil.rmtree(checkout / ".git")
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))  # it may be in one itself
    monkeypatch.setattr(run_tests, "ROOT", checkout)
    assert run_tests.test(arguments) == calls.status
    is_recorded = arguments == ["full"] and outcome == "passed"
    recorded = record.read_text() if record.exists() else ""
    assert recorded == (head.stdout.strip() if is_recorded else "")


@pytest.mark.parametrize(
    ("arguments", "are_needed"),
    [
        ([], False),
        (["quick"], False),
        (["containers"], False),
        (["tests/unit"], False),
        (["tests/server/test_guard.py"], False),
        (["tests/server/test_clients.py", "-k", "overlap"], True),
        (["tests/server"], True),
        (["all"], True),
        (["full", "-x"], True),
    ],
)
def test_clients_are_installed_where_their_tests_run(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, arguments: list[str], are_needed: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        environment.Environment, "set_up", lambda _, **options: asked.append(options["clients"])
    )
    assert run_tests.test(arguments) == 0
    assert asked == [are_needed]
    assert (tools.ROOT / tools.CLIENTS.tests).exists()


def test_clients_are_installed_once_and_by_their_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(
        environment, "do_steps", lambda steps, _: done.extend(str(step.stamp) for step in steps)
    )
    commands: list[list[str]] = []
    monkeypatch.setattr(
        environment.Environment, "_run", lambda _, command, __: commands.append(command)
    )
    newest = environment.Environment("cpu")
    newest.set_up(clients=True)
    step = newest._clients_step()
    assert {stamp for stamp in done if stamp.endswith("clients")} == {str(step.stamp)}
    monkeypatch.setattr(environment.shutil, "rmtree", lambda *_, **__: None)
    newest._install_clients()
    made, installed = commands
    assert made[-1] == str(environment.CLIENTS)
    assert installed[0] == str(environment.CLIENTS / "bin" / "python")
    assert "--require-hashes" in installed


def test_format_mends_and_checks_all(calls: Calls) -> None:
    assert format_code.format_all([]) == 0
    style = [["ruff", "check", "--fix", "."], ["ruff", "format", "."], ["mypy"]]
    assert calls.commands == [*style, ["_docs"]]
    assert calls.set_up == {"tests": True, "package_of_checkout": True}


def test_format_goes_on_after_a_failure_and_returns_it(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = iter([3, 0, 4, 5])
    monkeypatch.setattr(environment._supervise, "run", lambda *_, **__: next(statuses))
    assert format_code.format_all([]) == 3
    assert next(statuses, None) is None


# Which steps of set-up


class Recorded:
    """Steps that note in `done` that they ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[str] = []

    def step(
        self,
        name: str,
        made_from: str = "1",
        error: Exception | None = None,
        *,
        suffices: str = "",
    ) -> Any:
        """A step that raises `error`, if there is one, after it was noted."""

        def action() -> None:
            self.done.append(name)
            if error:
                raise error

        stamp = self.folder / "stamps" / name
        return environment.Step(name, stamp, made_from, action, suffices)


def test_a_step_is_done_once(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    for _ in range(2):
        environment.do_steps([recorded.step("a"), recorded.step("b")], tmp_path / "lock")
    assert recorded.done == ["a", "b"]


def test_a_step_is_done_again_when_its_sources_changed(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    environment.do_steps([recorded.step("a"), recorded.step("b")], tmp_path / "lock")
    environment.do_steps([recorded.step("a"), recorded.step("b", "2")], tmp_path / "lock")
    assert recorded.done == ["a", "b", "b"]


def test_a_step_that_was_interrupted_is_done_again(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    environment.do_steps([recorded.step("a"), recorded.step("b")], tmp_path / "lock")
    interrupted = recorded.step("b", "2", environment.SetupError("no network"))
    with pytest.raises(environment.SetupError):
        environment.do_steps([recorded.step("a"), interrupted], tmp_path / "lock")
    # Back to the sources of before: what is there now is not what they made.
    environment.do_steps([recorded.step("a"), recorded.step("b", "1")], tmp_path / "lock")
    assert recorded.done == ["a", "b", "b", "b"]


def test_the_beginning_of_the_sources_may_suffice(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    environment.do_steps([recorded.step("a", "patches package")], tmp_path / "lock")
    for made_from, done in (
        ("patches other", 1),
        ("others package", 2),  # and it leaves all of its sources, so that now the same
        ("others package", 2),
    ):
        step = recorded.step("a", made_from, suffices=made_from.split()[0])
        environment.do_steps([step], tmp_path / "lock")
        assert len(recorded.done) == done
    environment.do_steps([recorded.step("a", "others package")], tmp_path / "lock")
    assert len(recorded.done) == 2
    environment.do_steps([recorded.step("a", "others new")], tmp_path / "lock")
    assert len(recorded.done) == 3


def test_only_a_changed_package_is_no_reason_for_a_wheel_where_the_checkouts_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "CPU", tmp_path / "python" / "cpu")
    monkeypatch.setattr(environment, "PATCHES", tmp_path / "patches")
    for name in ("patches/1.0/upstream.lock", "python/a.py", "python/cpu/requirements.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    def is_done(*, package_of_checkout: bool) -> bool:
        made = environment.Environment("cpu")
        return bool(made._steps(package_of_checkout=package_of_checkout)[1].is_done())

    step = environment.Environment("cpu")._steps()[1]
    step.stamp.parent.mkdir(parents=True)
    step.stamp.write_text(step.made_from)
    assert is_done(package_of_checkout=False)
    (tmp_path / "python" / "a.py").write_text("changed = 1")
    assert is_done(package_of_checkout=True)
    assert not is_done(package_of_checkout=False)
    (tmp_path / "patches" / "1.0" / "a.patch").write_text("changed")
    assert not is_done(package_of_checkout=True)


def test_a_step_may_undo_later_ones(tmp_path: Path) -> None:
    """As making the environment anew does: it takes everything with it."""
    recorded = Recorded(tmp_path)
    environment.do_steps([recorded.step("a"), recorded.step("b")], tmp_path / "lock")
    remade = environment.Step("a", tmp_path / "stamps" / "a", "2", (tmp_path / "stamps/b").unlink)
    environment.do_steps([remade, recorded.step("b")], tmp_path / "lock")
    assert recorded.done == ["a", "b", "b"]


def test_another_python_starts_all_steps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def stamps() -> list[str]:
        made = environment.Environment("cpu")
        return [step.made_from for step in made._steps() + made._test_steps()]

    before = stamps()
    version = SimpleNamespace(major=3, minor=sys.version_info.minor + 1)
    monkeypatch.setattr(sys, "version_info", version)
    assert set(stamps()).isdisjoint(before)


def test_a_compiler_is_installed_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def titles() -> str:
        return " ".join(step.title for step in environment.Environment("cpu")._test_steps())

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "C++" in titles()
    (tmp_path / "c++").touch(mode=0o755)
    assert "C++" not in titles()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "clang++")
    assert "C++" not in titles()


def test_the_installed_compiler_is_called_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = environment.Environment("cpu")
    made.folder = tmp_path
    made.python = fake_python(tmp_path, "python")
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(made, "_pip", lambda *arguments: None)
    monkeypatch.setattr(made, "_run", lambda *arguments: None)
    made._install_compiler()
    command = [str(tmp_path / "bin" / "c++"), "-c", "a b.cpp"]
    called = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert called == ["python", "-m", "ziglang", "c++", "-Wl,-z,nodelete", "-c", "a", "b.cpp"]


def test_two_processes_do_not_set_up_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = Recorded(tmp_path)
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = threading.Thread(
            target=environment.do_steps, args=([recorded.step("a")], tmp_path / "lock")
        )
        waiting.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "waiting for another" not in capsys.readouterr().err:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert recorded.done == []
        Recorded(tmp_path).step("a").do()
    waiting.join(timeout=PATIENCE_SECONDS)
    assert not waiting.is_alive()
    assert recorded.done == []  # the other one did it


def test_digest_sees_contents_names_and_words(tmp_path: Path) -> None:
    def now(*words: str) -> str:
        return str(environment.digest(tmp_path, environment.files_below(tmp_path), *words))

    (tmp_path / "a.py").write_text("x = 1\n")
    digests = [now(), now("word")]
    (tmp_path / "a.py").write_text("x = 2\n")
    digests.append(now())
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    digests.append(now())
    assert len(set(digests)) == 4

    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "b.cpython-311.pyc").write_bytes(b"made by Python")
    assert now() == digests[-1]


# Which programs of the system


class Debian:
    """A machine whose apt-get notes its calls and installs what it knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()

    def put(self, name: str, script: str = "") -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def put_apt_get(self, knows: str = "*", status: int = 0) -> None:
        """With status 0 it installs what a pattern of the shell matches, with others nothing."""
        self.put(
            "apt-get",
            f'echo "$@" >> {self.log}\n'
            f"[ {status} = 0 ] || exit {status}\n"
            f'cd {self.folder}; for word; do case "$word" in\n'
            "-*|*=*|update|install) ;;\n"
            f"{knows}) : > $word; /bin/chmod 755 $word ;;\n"
            "*) exit 100 ;;\n"
            "esac; done",
        )

    def calls(self) -> list[list[str]]:
        """The words of each call, without the options that all have."""
        return [line.split()[5:] for line in self.log.read_text().splitlines()]


def run_unsupervised(command: list[str], *, env: dict[str, str], cwd: Path) -> int:
    return subprocess.run(command, env=env, cwd=cwd, check=False).returncode


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Debian:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "ROOTS_FOLDERS", ())
    monkeypatch.setattr(tools, "APT_LISTS", tmp_path / "lock")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    # Its own `run` ends every child of this process, of other tests too.
    monkeypatch.setattr(tools._supervise, "run", run_unsupervised)
    machine = Debian(tmp_path)
    machine.put_apt_get()
    return machine


EVERYTHING = [["update"], *(["install", *each.programs] for each in tools.ALL)]


def test_what_tests_need_is_installed_once(debian: Debian) -> None:
    debian.put("podman")
    for _ in range(2):
        tools.install(tools.ALL)
        assert not any(each.missing() for each in tools.ALL)
    others = [name for name in tools.IMAGE_TOOLS.programs if name != "podman"]
    assert debian.calls() == [["update"], ["install", *others], *EVERYTHING[2:]]
    assert all("DPkg::Lock::Timeout=" in line for line in debian.log.read_text().splitlines())
    (debian.folder / "runc").unlink()  # somebody removed it
    tools.install(tools.ALL)
    assert debian.calls()[len(EVERYTHING) :] == [["update"], ["install", "runc"]]


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""
TAKE = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def test_another_update_is_waited_for(debian: Debian) -> None:
    """As the real one, this apt-get fails at once while another holds its lock."""
    script = (debian.folder / "apt-get").read_text()
    debian.put("apt-get", f'{sys.executable} -c "{TAKE}" {tools.APT_LISTS} || exit 100\n{script}')
    command = [sys.executable, "-c", HOLD, str(tools.APT_LISTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        release = threading.Timer(1, other.stdin.close)
        release.start()
        tools.install(tools.ALL)
        release.join()
    assert debian.calls() == EVERYTHING


INSTALL_ALL = """
import os, sys
from pathlib import Path
import _tools
os.geteuid = lambda: 0
_tools.APT_LISTS, _tools.ROOTS_FOLDERS = Path(sys.argv[1]), ()
_tools.install(_tools.ALL)
"""


def test_two_set_ups_install_once(debian: Debian) -> None:
    command = [sys.executable, "-c", INSTALL_ALL, str(tools.APT_LISTS)]
    env = os.environ | {"PYTHONPATH": AS_SCRIPTS}
    for both in [subprocess.Popen(command, env=env) for _ in range(2)]:
        assert both.wait(PATIENCE_SECONDS) == 0
    assert debian.calls() == EVERYTHING


def test_only_root_installs_and_only_with_apt_get(
    debian: Debian, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    tools.install(tools.ALL)
    assert debian.calls() == []
    assert "uidmap" in tools.IMAGE_TOOLS.missing()  # rootless podman needs it
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "uidmap" not in tools.IMAGE_TOOLS.missing()
    (debian.folder / "apt-get").unlink()
    tools.install(tools.ALL)
    assert debian.calls() == []


def test_an_installation_that_fails_is_one_sentence(
    debian: Debian, capfd: pytest.CaptureFixture[str]
) -> None:
    debian.put_apt_get(status=100)
    tools.install([tools.IMAGE_TOOLS])
    said = capfd.readouterr().err.splitlines()
    assert said[-2:] == [
        f"sglang-lz: apt-get could not {what}, see the lines above."
        for what in ("update", f"install {' '.join(tools.IMAGE_TOOLS.programs)}")
    ]
    assert tools.IMAGE_TOOLS.missing() == list(tools.IMAGE_TOOLS.programs)


def test_a_package_that_there_is_not_keeps_no_other_away(debian: Debian) -> None:
    debian.put_apt_get(knows="useful")
    others = [tools.Tools("tests/a.py", ("absent",)), tools.Tools("tests/b.py", ("useful",))]
    tools.install(others)
    assert [each.missing() for each in others] == [["absent"], []]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], tools.ALL),
        (["-k", "tests"], tools.ALL),
        (["tests"], tools.ALL),
        (["tests/unit", "tests/deploy"], (tools.IMAGE_TOOLS,)),
        (["tests/server"], (tools.BROWSER_TOOLS,)),
        (["tests/server/test_modes.py::test_a", "-x"], ()),
        (["-x", "tests/server/test_modes.py"], ()),
        (["--ignore", "tests/server"], tools.ALL),  # the value of --ignore
        (["tests/deploy/test_manifests.py"], ()),
        (["tests/deploy/test_cpu_image.py::test_a", "tests/unit"], (tools.IMAGE_TOOLS,)),
    ],
)
def test_only_what_the_tests_need_is_installed(
    arguments: list[str], wanted: tuple[tools.Tools, ...]
) -> None:
    assert tuple(tools.needed(arguments)) == wanted


def test_the_files_that_need_tools_exist() -> None:
    for each in tools.ALL:
        assert list(tools.ROOT.glob(each.tests))


# Nothing outside the checkout


def test_children_find_every_cache_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "CACHE", tmp_path)
    for name in ("PYTHONPATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR", "HOME"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("HF_HOME", "/models")
    variables = environment.Environment("cpu").variables()
    assert [name for name, value in variables.items() if value == "/elsewhere"] == []
    assert variables["HOME"] == f"{tmp_path}/home"
    assert variables["TMPDIR"].startswith(f"{tmp_path}/tmp/")
    assert variables["HF_HOME"] == "/models"
    assert "XDG_CACHE_HOME" not in variables


def test_pip_keeps_the_home_where_its_configuration_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert environment.Environment("cpu").variables(home=False)["HOME"] == "/home/someone"


def test_temporary_folders_of_dead_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "CACHE", tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    for pid in (dead.pid, os.getppid()):
        (tmp_path / "tmp" / str(pid)).mkdir(parents=True)
    with environment.Environment("cpu").temporary_folder() as folder:
        assert {path.name for path in folder.parent.iterdir()} == {
            str(os.getpid()),
            str(os.getppid()),
        }
    assert not folder.exists()


def test_a_path_too_long_for_sockets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "CACHE", tmp_path / ("long" * 30))
    with (
        pytest.raises(environment.SetupError, match=r"\d+ bytes too long for the Unix sockets"),
        environment.Environment("cpu").temporary_folder(),
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


def test_what_numba_compiled_of_a_checkout_goes_with_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions of penalty/kernels/cpu.py hold constants of penalty/window.py and fields/lz.py."""
    package = tmp_path / "python" / "sglang_lz"
    names = ("__init__.py", "fields/lz.py", "penalty/window.py", "penalty/kernels/cpu.py")
    sources = [package / name for name in names]
    for source in sources:
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("")

    # Every later process of this worker would compile into the folder that is set here.
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def folder() -> str | None:
        os.environ.pop("NUMBA_CACHE_DIR", None)
        numba_cache.use_own_folder(tmp_path)
        return os.environ.get("NUMBA_CACHE_DIR")

    monkeypatch.setattr(sys, "path", [str(tmp_path / "python")])
    monkeypatch.delitem(sys.modules, "sglang_lz", raising=False)
    found = {folder(), folder()}
    for source in sources:
        source.write_text("SIZE = 2")
        found.add(folder())
    assert len(found) == 1 + len(sources)
    assert all(str(name).startswith(f"{tmp_path}/.cache/numba/") for name in found)
    monkeypatch.setattr(sys, "path", [])
    importlib.invalidate_caches()
    assert folder() is None


def test_what_numba_compiled_of_an_installed_package_goes_with_its_sources(tmp_path: Path) -> None:
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


def test_ctrl_c_in_a_terminal_ends_everything() -> None:
    supervisor, pids = start()
    os.killpg(supervisor.pid, signal.SIGINT)
    assert supervisor.wait(timeout=PATIENCE_SECONDS) == 128 + signal.SIGINT
    assert [pid for pid in pids if running(pid)] == []


def test_the_child_ends_when_the_script_is_killed() -> None:
    supervisor, pids = start()
    supervisor.kill()
    supervisor.wait(timeout=PATIENCE_SECONDS)
    try:
        wait_until_gone(pids[:1])  # it is told; its own children are its own business
    finally:
        for pid in pids[1:]:
            os.kill(pid, signal.SIGKILL)


def test_what_a_child_leaves_behind_is_ended() -> None:
    supervisor, pids = start(then="sys.exit(7)")
    assert supervisor.wait(timeout=PATIENCE_SECONDS) == 7
    assert [pid for pid in pids if running(pid)] == []


def test_a_child_killed_by_a_signal_has_the_shells_status() -> None:
    supervisor, _ = start(then="os.kill(os.getpid(), signal.SIGKILL)")
    assert supervisor.wait(timeout=PATIENCE_SECONDS) == 128 + signal.SIGKILL


def test_shared_memory_is_removed() -> None:
    """Both kinds that SGLang's processes leave: a mapped file, and a semaphore."""
    name = f"sglang-lz-test-{os.getpid()}"
    then = f"""
import ctypes, mmap
f = open("/dev/shm/{name}", "w+b")
f.truncate(4096)
m = mmap.mmap(f.fileno(), 4096)
sem_open = ctypes.CDLL(None).sem_open
sem_open.restype = ctypes.c_void_p
assert sem_open(b"/{name}", os.O_CREAT | os.O_EXCL, 0o600, 1)
open("/dev/shm/{name}-ready", "w").close()
{FOREVER}
"""
    files = [Path("/dev/shm", before + name) for before in ("", "sem.")]
    ready = Path("/dev/shm", f"{name}-ready")
    supervisor, _ = start(then=then)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert all(file.exists() for file in files)
        supervisor.send_signal(signal.SIGINT)
        supervisor.wait(timeout=PATIENCE_SECONDS)
        assert [file for file in files if file.exists()] == []
    finally:
        for file in [ready, *files]:
            file.unlink(missing_ok=True)
