"""scripts/test: sets up the CPU flavour, then checks everything."""

from __future__ import annotations

import os
import subprocess
import time

import _supervise
import _tools
from _checkout import ROOT
from _environment import (
    CACHE,
    FULL,
    Environment,
    SetupError,
    detect_flavour,
    main,
    say,
)

MOST_WORKERS = 4
"""Tests that run at the same time: each may have a server, of up to two cores and 3 GB."""

USAGE = """\
usage: scripts/test [quick|all|full|containers|gpu] [argument of pytest ...]
       scripts/test FILE|FOLDER|TEST ... [argument of pytest ...]

Set up the patched SGLang inside this checkout, CPU flavour, and check the patches, the installed
wheel, style and types, and run the tests against the installed wheel, on real servers too.

  quick       without tests/server, which start real servers, without images and what else is slow
  all         also the images, clients of other projects and short runs of the benchmarks; this is
              what continuous integration runs
  full        everything: each test of a server on all servers that it names, instead of the first
              (tests/server/configurations.py), more examples, fuzzing, and a short soak; a release
              is signed only after it. A missing program is an error here
  containers  only tests/deploy: lints what deploys the server, builds the images, runs one
  gpu         only on a machine with an NVIDIA GPU: the CUDA flavour, its kernels and its servers

Tests that are named without one of these words run alone, and nothing else is checked:

    scripts/test tests/unit/test_window.py -k ring

Tests below tests/unit then import sglang_lz from the checkout, so that a change in it builds no
wheel. All others, and those of the words above, run against the installed wheel.

The images are built and run with podman, and the playground is opened in Chromium. As root on
Debian and Ubuntu, what is missing of them is installed first. Elsewhere the tests that need it are
skipped, and the last lines say which and how to run them; with CI set in the environment, they are
errors.

Arguments of pytest, such as a test file or -k, apply to the tests only; -m replaces what leaves
slow tests out of quick, and those of full out of the others. The tests run on up to 4 cores,
those of one file that is named alone on one; -n 0 runs all one after the other, as a debugger wants
them.
"""


MODES = ("quick", "all", "full", "containers", "gpu")
DEFAULT = "default"
"""The mode without a word or named tests."""
NAMED = "named"
"""The mode that has no word: tests are named."""
UNIT = ROOT / "tests" / "unit"
ONLY_ALL = (
    *(tools.tests for tools in _tools.ALL),
    *("tests/server/test_*_bench.py", "tests/server/test_hostile.py", "tests/server/test_soak.py"),
    _tools.CLIENTS.tests,
)
"""What only `all` and `full` run, or `containers`: images, a browser, benchmarks, clients."""
GPU = (
    *("tests/unit/test_kernels.py", "tests/gpu"),
    *(
        f"tests/unit/test_penalizer.py::{name}"
        for name in (
            "test_scheduler_with_the_kernels_of_a_gpu",
            "test_lz_repetition_and_dry_act_on_one_token[cuda]",
        )
    ),
)
"""What `gpu` runs, with LZ_TEST_DEVICE=cuda: without a network, pytest can run the same in any
environment that has our wheel."""
COMPILE = """
import threading
import torch
from sglang_lz.demo import MODEL_PATH
from sglang_lz.penalty.kernels import import_for, warm_up
from sglang_lz.proper.apart import prepare_apart

tokenizer = (MODEL_PATH / "tokenizer.json").read_text()
beside = threading.Thread(target=prepare_apart, args=(tokenizer,))  # in a process of its own
beside.start()
cpu = torch.device("cpu")
warm_up(import_for(cpu), 1024, cpu, {4})
beside.join()
"""


def split_mode(arguments: list[str]) -> tuple[str, list[str]]:
    """Remove the mode, one of `MODES`, from the arguments; else it is `NAMED` or `DEFAULT`."""
    if arguments and arguments[0] in MODES:
        return arguments[0], arguments[1:]
    return (NAMED if _tools.test_paths(arguments) else DEFAULT), arguments


def imports_checkout(mode: str, arguments: list[str]) -> bool:
    """Whether the tests import `sglang_lz` from the checkout instead of the installed wheel."""
    paths = _tools.test_paths(arguments)
    return mode == NAMED and all(path.resolve().is_relative_to(UNIT) for path in paths)


def needs_clients(mode: str, arguments: list[str]) -> bool:
    """Whether tests may run that need the clients of `CLIENTS`."""
    if mode in ("quick", DEFAULT, "containers"):
        return False
    paths = _tools.test_paths(arguments)
    return not paths or any(_tools.CLIENTS.used_below(path) for path in paths)


def workers(mode: str, arguments: list[str]) -> list[str]:
    """The pytest arguments that distribute the tests over processes; none for a single file."""
    paths = _tools.test_paths(arguments)
    if mode == NAMED and len(paths) == 1 and not paths[0].is_dir():
        return []
    count = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    # Each server's tests run in one worker, in the order of tests/server/configurations.py.
    return ["-n", str(count), "--dist", "loadgroup", "--no-loadscope-reorder"]


def test(arguments: list[str]) -> int:
    """Run the script; return its exit status: 0, or that of the first failure."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    mode, rest = split_mode(arguments)
    if mode == "gpu":
        return _test_gpu(rest)
    environment = Environment("cpu")
    commit = commit_of_checkout() if mode == "full" and not rest else ""
    environment.set_up(
        tests=True,
        clients=needs_clients(mode, rest),
        package_of_checkout=imports_checkout(mode, rest),
    )
    if mode not in ("quick", DEFAULT):
        _tools.install(_tools.needed(["tests/deploy"] if mode == "containers" else rest))
    with environment.temporary_folder():
        status = _check(environment, mode, rest)
    if commit and status == 0 and commit_of_checkout() == commit:
        FULL.write_text(commit)
    return status


def _test_gpu(arguments: list[str]) -> int:
    if detect_flavour(os.environ) != "cuda":
        raise SetupError("`scripts/test gpu` needs an NVIDIA GPU, and there is none here.")
    environment = Environment("cuda")
    environment.set_up(tests=True)
    with environment.temporary_folder():
        env = variables(environment, "gpu") | {"LZ_TEST_DEVICE": "cuda"}
        return _pytest(environment, env, [*GPU, *arguments])


def commit_of_checkout() -> str:
    """The commit that is checked out; empty if the checkout differs from it, or has none."""
    commands = (["git", "status", "--porcelain"], ["git", "rev-parse", "HEAD"])
    changes, commit = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        for command in commands
    )
    failed = changes.returncode or commit.returncode
    return "" if failed or changes.stdout else commit.stdout.strip()


def selection(mode: str) -> list[str]:
    """The pytest arguments that leave tests out of a mode."""
    left_out = [f"--ignore-glob={tests}" for tests in ONLY_ALL]
    return {
        "quick": [
            *("-m", "not (slow or full or gpu)", "--representative", "--ignore-glob=tests/server"),
            *left_out,
        ],
        DEFAULT: ["-m", "not (full or gpu)", "--representative", *left_out],
        "all": ["-m", "not (full or gpu)", "--representative"],
        "full": ["-m", "not gpu"],
        "containers": ["tests/deploy"],
    }.get(mode, [])


def variables(environment: Environment, mode: str = NAMED) -> dict[str, str]:
    """Environment variables for tests and linters, which keep their caches in the checkout."""
    return environment.variables() | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # the demo model is so small that more threads do not help
        "LZ_STOCK_SITE": str(environment.stock),
        "LZ_TEST_DRAFTS": str(CACHE / "drafts"),
        "RUFF_CACHE_DIR": str(CACHE / "ruff"),
        "MYPY_CACHE_DIR": str(CACHE / "mypy"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(CACHE / "hypothesis"),
        **({"CI": "1"} if mode == "full" else {}),
    }


def _check(environment: Environment, mode: str, arguments: list[str]) -> int:
    env = variables(environment, mode)
    checkout = {"PYTHONPATH": str(ROOT / "python")}
    if imports_checkout(mode, arguments):
        env |= checkout
    python = str(environment.python)
    tool = [python, "-m", "sglang_lz"]
    checks = {
        "ruff check": ([python, "-m", "ruff", "check", "."], {}),
        "ruff format": ([python, "-m", "ruff", "format", "--check", "."], {}),
        "mypy": ([python, "-m", "mypy"], {}),
        "patches": ([*tool, "check", "--cache", str(CACHE / "upstream")], checkout),
        "doctor": ([*tool, "doctor"], {}),
    }
    results = {}
    is_whole = mode not in (NAMED, "containers")
    for name, (command, more) in checks.items() if is_whole else ():
        say(name)
        began = time.monotonic()
        status = _supervise.run(command, env=env | more, cwd=ROOT)
        results[name] = (status, time.monotonic() - began)
    for name, (status, seconds) in results.items():
        say(f"{name:12} {'passed' if status == 0 else 'FAILED'} in {seconds:.0f} s")
    if is_whole:
        _compile(environment, env)
    status = _pytest(environment, env, [*workers(mode, arguments), *selection(mode), *arguments])
    failed = [name for name, (status, _) in results.items() if status]
    if failed:
        say(f"failed besides the tests: {', '.join(failed)}")
    return status or int(bool(failed))


def _compile(environment: Environment, env: dict[str, str]) -> None:
    """Compile the kernels for the CPU, or every worker and every server would at the same time."""
    say("compiling the kernels, if they have changed")
    _supervise.run([str(environment.python), "-c", COMPILE], env=env, cwd=ROOT)


def _pytest(environment: Environment, env: dict[str, str], arguments: list[str]) -> int:
    command = [str(environment.python), "-m", "pytest", f"--basetemp={CACHE / 'pytest'}"]
    command += ["-o", f"cache_dir={CACHE / 'pytest-cache'}"]
    return _supervise.run([*command, *arguments], env=env, cwd=ROOT)


if __name__ == "__main__":
    main(test)
