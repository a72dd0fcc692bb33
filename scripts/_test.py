"""scripts/test: sets up the patched SGLang, then checks everything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
    temporary_folder,
)

MOST_WORKERS = 4
"""Tests that run at the same time: each may have a server, of up to two cores and 3 GB."""

USAGE = """\
usage: scripts/test [quick|all|full|containers|gpu] [argument of pytest ...]
       scripts/test FILE|FOLDER|TEST ... [argument of pytest ...]

Set up the patched SGLang inside this checkout, CPU flavour, and check the patches, the installed
wheel, style and types, and run the tests against the installed wheel, on real servers too.

  quick       no servers, images or slow tests
  all         also images, a browser, and short runs of the benchmarks; this is what continuous
              integration runs
  full        everything, on all servers; a release is signed only after it
  containers  only tests/deploy: lints what deploys the server, builds the images, runs one
  gpu         only on a machine with an NVIDIA GPU: the CUDA flavour, its kernels and its servers

If you name tests without one of these words, they run alone, and nothing else is checked. Tests
below tests/unit then import our packages from the checkout, so that a change in it builds no wheel.

As root on Debian and Ubuntu, `all`, `full` and `containers` also install podman and Chromium.
Elsewhere the tests that need them are skipped; with CI set, and in `full`, they are errors.
-m replaces what leaves slow tests out; -n 0 runs one test after the other.
"""

MODES = ("quick", "all", "full", "containers", "gpu")
DEFAULT, NAMED = "default", "named"
"""The modes without a word: without named tests, and with them."""
ONLY_ALL = (
    *(_tools.IMAGE_TOOLS.tests, _tools.BROWSER_TOOLS.tests),
    *("tests/server/test_*_bench.py", "tests/server/test_hostile.py", "tests/server/test_soak.py"),
)
"""What only `all` and `full` run, or `containers`."""
SELECTED = {
    "quick": [
        *("-m", "not (slow or full or gpu)", "--representative", "--ignore-glob=tests/server"),
        *(f"--ignore-glob={tests}" for tests in ONLY_ALL),
    ],
    DEFAULT: [
        *("-m", "not (full or gpu)", "--representative"),
        *(f"--ignore-glob={tests}" for tests in ONLY_ALL),
    ],
    "all": ["-m", "not (full or gpu)", "--representative"],
    "full": ["-m", "not gpu"],
    "containers": ["tests/deploy"],
    "gpu": [
        *("tests/unit/test_kernels.py", "tests/gpu"),
        "tests/unit/test_penalizer.py::test_scheduler_with_the_kernels_of_a_gpu",
        "tests/unit/test_penalizer.py::test_lz_repetition_and_dry_act_on_one_token[cuda]",
    ],
}
"""The pytest arguments of each mode. What `gpu` runs needs LZ_TEST_DEVICE=cuda in the environment
and our wheel: where there is no network, call pytest."""
PATH_OPTIONS = (
    *("-c", "-k", "-m", "--basetemp", "--confcutdir", "--deselect", "--ignore", "--ignore-glob"),
    *("--junitxml", "--junit-xml", "--rootdir"),
)
"""Options of pytest whose value, the next word, may look like a path."""
COMPILE = """
import threading
import torch
from lz_penalty.kernels import import_for, warm_up
from proper_tokens.warm_up import prepare_in_own_process
from sglang_lz.demo import MODEL_PATH

tokenizer = (MODEL_PATH / "tokenizer.json").read_text()
beside = threading.Thread(target=prepare_in_own_process, args=(tokenizer,))
beside.start()
cpu = torch.device("cpu")
warm_up(import_for(cpu), 1024, cpu, {4})
beside.join()
"""


def test_paths(arguments: list[str]) -> list[Path]:
    """The files and folders among pytest arguments."""
    pairs = zip(["", *arguments], arguments, strict=False)
    words = [word for before, word in pairs if before not in PATH_OPTIONS and word[:1] != "-"]
    files = [ROOT / word.partition("::")[0] for word in words]
    return [file for file in files if file.exists() or file.suffix == ".py"]


def split_mode(arguments: list[str]) -> tuple[str, list[str]]:
    """Remove the mode, one of `MODES`, from the arguments; else it is `NAMED` or `DEFAULT`."""
    if arguments and arguments[0] in MODES:
        return arguments[0], arguments[1:]
    return (NAMED if test_paths(arguments) else DEFAULT), arguments


def workers(mode: str, paths: list[Path]) -> list[str]:
    """The pytest arguments that distribute the tests over processes; none for a single file."""
    if mode == "gpu" or (mode == NAMED and len(paths) == 1 and not paths[0].is_dir()):
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
    paths = test_paths(rest)
    if mode == "gpu" and detect_flavour(os.environ) != "cuda":
        raise SetupError("`scripts/test gpu` needs an NVIDIA GPU, and there is none here.")
    environment = Environment("cuda" if mode == "gpu" else "cpu")
    commit = commit_of_checkout() if mode == "full" and not rest else ""
    unit = ROOT / "tests" / "unit"
    from_checkout = mode == NAMED and all(path.resolve().is_relative_to(unit) for path in paths)
    environment.set_up(tests=True, package_of_checkout=from_checkout)
    if mode in ("all", "full", "containers"):
        browser = [] if mode == "containers" else [_tools.BROWSER_TOOLS]
        _tools.install([_tools.IMAGE_TOOLS, *browser])
    env = variables(environment)
    env |= {"PYTHONPATH": str(ROOT / "python")} if from_checkout else {}
    env |= {"CI": "1"} if mode == "full" else {}
    env |= {"LZ_TEST_DEVICE": "cuda"} if mode == "gpu" else {}
    pytest = [str(environment.python), "-m", "pytest", f"--basetemp={CACHE / 'pytest'}"]
    pytest += ["-o", f"cache_dir={CACHE / 'pytest-cache'}", *workers(mode, paths)]
    pytest += [*SELECTED.get(mode, []), *rest]
    with temporary_folder():
        whole = mode in ("quick", DEFAULT, "all", "full")
        failed = _check(environment, env) if whole else []
        status = _supervise.run(pytest, env=env, cwd=ROOT)
    if failed:
        say(f"failed besides the tests: {', '.join(failed)}")
    status = status or int(bool(failed))
    if commit and status == 0 and commit_of_checkout() == commit:
        FULL.write_text(commit)
    return status


def commit_of_checkout() -> str:
    """The commit that is checked out; empty if the checkout differs from it, or has none."""
    changes, commit = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        for words in (("status", "--porcelain"), ("rev-parse", "--verify", "HEAD"))
    )
    return "" if changes.returncode or changes.stdout else commit.stdout.strip()


def variables(environment: Environment) -> dict[str, str]:
    """Environment variables for tests and linters, which keep their caches in the checkout."""
    return environment.variables() | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # the demo model is so small that more threads do not help
        "LZ_STOCK_SITE": str(environment.stock),
        "LZ_TEST_DRAFTS": str(CACHE / "drafts"),
        "RUFF_CACHE_DIR": str(CACHE / "ruff"),
        "MYPY_CACHE_DIR": str(CACHE / "mypy"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(CACHE / "hypothesis"),
    }


def _check(environment: Environment, env: dict[str, str]) -> list[str]:
    """Check all but the tests, and compile the kernels; return the names of what failed."""
    failed = []
    for name, *arguments in (
        ("style", "-m", "ruff", "check", "."),
        ("format", "-m", "ruff", "format", "--check", "."),
        ("types", "-m", "mypy"),
        ("patches", "scripts/_patches.py", "check"),
        ("doctor", "-m", "sglang_lz", "doctor"),
        # Otherwise every worker and every server would compile the kernels at the same time.
        ("compiling the kernels, if they have changed", "-c", COMPILE),
    ):
        say(name)
        command = [str(environment.python), *arguments]
        if _supervise.run(command, env=env, cwd=ROOT):
            failed.append(name)
    return failed


if __name__ == "__main__":
    main(test)
