"""scripts/gpu-check: checks and measures on this machine's GPU, in steps that can be resumed."""

from __future__ import annotations

import argparse
import compileall
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _environment import CACHE, ROOT, SetupError, digest, files_below, main, say
from _gpu_bundle import BUNDLE

sys.path.append(str(ROOT))
from bench import records
from bench.processes import Background, tail_of

DONE, FAILED, MORE = 0, 1, 3
"""Exit statuses; argparse has 2."""

KERNEL_TESTS = ROOT / "tests" / "unit" / "test_kernels.py"
HOST_TESTS = tuple(
    f"tests/unit/test_penalizer.py::{name}"
    for name in (
        "test_scheduler_with_the_kernels_of_a_gpu",
        "test_lz_repetition_and_dry_act_on_one_token[cuda]",
    )
)
STATE = "gpu-check.json"
ARCHIVE = "gpu-check.zip"
"""All results in one file, for machines that send only a few files back."""
BEFORE = ROOT / ".gpu" / "results"
START_SECONDS = 20.0
"""A command gets at least this long, or is left to the next run."""
GRACE_SECONDS = 25.0
"""How long a command may take to end when its time is up: bench.serving gives its own 20 s."""
MOST_AT_ONCE = 8
"""Commands, each of which starts several processes."""
RUNNING: set[Background] = set()
"""The commands that run now, each in a thread."""

GPU_SERVER = [
    *["--attention-backend", "triton", "--sampling-backend", "pytorch"],
    # It would capture 50 sizes that a benchmark with a single input length never uses.
    "--disable-prefill-cuda-graph",
]
CPU_SERVER = ["--dtype", "float32", "--max-total-tokens", "4096"]
SANITIZER = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
SANITIZED = "equal_the_torch_operators or same_bits or go_round"
"""Those of KERNEL_TESTS that launch step, verify and accept on small random states."""
SERVER_CHECKS = {
    "memory": ["memory"],
    "speculate": ["chain", "tree", "adaptive", "dflash", "dspark"],
    "burst": ["burst"],
    "two-batch": ["two-batch"],
}
"""The checks of scripts/_gpu_server.py in each step."""
COMPILED = {
    "plain": [],
    "largest": ["--window", "8192"],
    "trees": ["--nodes", "1", "2", "4", "6", "8", "16", "64"],
}
"""Servers whose compilations are counted: arguments of scripts/_gpu_compile.py."""
MODELS = ["qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b"]

EPILOG = f"""\
steps that check, on a GPU side by side:
  kernel     the kernels' tests against torch and tests/oracle.py
  sglang     the static benchmark of SGLang with the demo model, its logits against tests/oracle.py
  compile    kernels that Triton compiles after the warm-up, none: compile-*.json
  sanitizer  compute-sanitizer's memcheck and racecheck over the kernels' tests:
             memcheck.txt, racecheck.txt
  memory     a server without room for the windows ends with one sentence: memory.json
  speculate  EAGLE as chain, tree and --speculative-adaptive, DFLASH and DSPARK, overlap scheduling
             and CUDA graphs, against the same without overlap, at every node: chain.json,
             tree.json, adaptive.json, dflash.json, dspark.json
steps that measure, one after the other:
  step       a decode step with and without penalties, on the host and on the GPU: step.json
  table      bench.serving static: serving.json, model after model
  bench      bench.kernel: kernel.json, and with matplotlib kernel.png; bench.penalties
  burst      prefills of 1 to 256 requests beside running ones, with and without: burst.json
only by its name:
  two-batch  two-batch overlap against the same without; needs two GPUs and DeepEP: two-batch.json

What is done is not done again: the state is {STATE} in --out, beside what was measured. What a
command printed is in logs/. All of it is in {ARCHIVE}, too. Where only what a command wrote comes
back from the machine, put {ARCHIVE} into {BEFORE.relative_to(ROOT)}/, and the next run begins with
it. Where SGLang is not installed, .gpu/ is needed (scripts/gpu-bundle).

exit status: {DONE} all done, {FAILED} a step failed or cannot run, 2 wrong arguments,
{MORE} the time was up: run it again
"""


@dataclass(frozen=True)
class Machine:
    """Where the steps run.

    Attributes:
        out: the folder for the results and the state.
        rehearse: run a small version on the CPU.
        python: the interpreter for every command.
    """

    out: Path
    rehearse: bool
    python: str = sys.executable

    def commands(self, step: str) -> list[list[str]]:
        """The commands of a step in order; each may be repeated after an interruption.

        Raises:
            SetupError: the step needs compute-sanitizer, which is not installed.
        """
        rehearse = ["--rehearse"] if self.rehearse else []
        pytest = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        if step == "kernel":
            return [[*pytest, str(KERNEL_TESTS), *HOST_TESTS]]
        if step == "sanitizer":
            tests = [*pytest, str(KERNEL_TESTS), "-k", SANITIZED]
            if self.rehearse:  # there are no kernels to check, only whether the tests run
                return [tests]
            if shutil.which(SANITIZER) is None:
                raise SetupError(f"there is no {SANITIZER} here; it comes with CUDA's toolkit.")
            look = [SANITIZER, "--error-exitcode", "9", "--tool"]
            return [
                [*look, tool, "--log-file", str(self.out / f"{tool}.txt"), *tests] for tool in TOOLS
            ]
        if step == "compile":
            count = [self.python, str(ROOT / "scripts" / "_gpu_compile.py"), *rehearse]
            return [
                [*count, "--out", str(self.out / f"compile-{name}.json"), *arguments]
                for name, arguments in COMPILED.items()
            ]
        if step in SERVER_CHECKS:
            check = [self.python, str(ROOT / "scripts" / "_gpu_server.py"), *rehearse]
            return [
                [*check, name, "--out", str(self.out / f"{name}.json")]
                for name in SERVER_CHECKS[step]
            ]
        if step == "bench":
            bench = [self.python, "-m", "bench.kernel"]
            result, figure = str(self.out / "kernel.json"), str(self.out / "kernel.png")
            quick = ["--quick"] if self.rehearse else []
            draw = [[*bench, "--plot", figure, result]]
            others = [self.python, "-m", "bench.penalties"]
            return [
                [*bench, "--out", result, *quick],
                [*others, "--out", str(self.out / "penalties.json"), *quick],
                *(draw if importlib.util.find_spec("matplotlib") else []),
            ]
        if step == "sglang":
            smoke = [self.python, str(ROOT / "scripts" / "_gpu_smoke.py")]
            # The servers of other steps need memory at the same time.
            on_gpu = [*GPU_SERVER, "--mem-fraction-static", "0.5", "--max-total-tokens", "8192"]
            return [[*smoke, *(CPU_SERVER if self.rehearse else on_gpu)]]
        if step == "step":
            steps = [self.python, str(ROOT / "scripts" / "_gpu_step.py")]
            steps += ["--out", str(self.out / "step.json")]
            small = ["--model", "demo", "--input-len", "64", "--rounds", "1"]
            return [
                [*steps, *small, "--", *CPU_SERVER]
                if self.rehearse
                else [*steps, "--", *GPU_SERVER]
            ]
        table = [self.python, "-m", "bench.serving", "static"]
        table += ["--out", str(self.out / "serving.json")]
        if self.rehearse:
            return [[*table, "--smoke"]]
        # Each command reuses earlier results, so the table grows by one model at a time.
        grown = [MODELS[:count] for count in range(1, len(MODELS) + 1)]
        return [[*table, "--models", *models, "--", *GPU_SERVER] for models in grown]

    def variables(self, step: str) -> dict[str, str]:
        """The environment variables of a step's commands.

        Raises:
            SetupError: SGLang is neither installed nor in a bundle.
        """
        env = dict(os.environ)
        env["HF_HUB_OFFLINE"] = "1"  # nothing needs to be downloaded
        if self.rehearse:  # the model is so small that threads only wait for each other
            env.setdefault("OMP_NUM_THREADS", "1")
        else:
            env["LZ_TEST_DEVICE"] = "cuda"
        if step == "sanitizer":
            # Otherwise, torch allocates parts of a large block, and an access past the end of one
            # goes unnoticed.
            env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        if not self.rehearse and importlib.util.find_spec("sglang") is None:
            _prepend(env, "PYTHONPATH", unpack(BUNDLE, CACHE / "gpu-site"))
            # sglang-kernel is older than upstream requires: scripts/requirements-gpu.txt.
            env["SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"] = "1"
            # SGLang compiles some kernels on first use, with the ninja of this Python.
            _prepend(env, "PATH", Path(self.python).parent)
        if step in ("kernel", "bench", "sanitizer", "compile"):
            _prepend(env, "PYTHONPATH", ROOT / "python")
        return env


def unpack(bundle: Path, folder: Path) -> Path:
    """Unpack a bundle unless that has been done; return the folder to import from.

    Raises:
        SetupError: there is no bundle.
    """
    if not bundle.exists():
        raise SetupError(f"there is no {bundle}: make it with scripts/gpu-bundle.")
    site = folder / hashlib.sha256(bundle.read_bytes()).hexdigest()[:16]
    if not site.exists():
        shutil.rmtree(folder, ignore_errors=True)
        new = site.with_suffix(".new")
        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(new)
        # Otherwise, every process of the first server compiles all that it imports.
        compileall.compile_dir(new, quiet=2, workers=0)
        new.rename(site)
    return site


class State:
    """The completed commands, stored in a file beside the results.

    Args:
        out: the folder of the results.
        before: the folder of an earlier run's results, which are used if `out` has none.
        key: what the results depend on.

    Raises:
        SetupError: the results in `out` depend on something else.
    """

    def __init__(self, out: Path, before: Path, key: str) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._file = out / STATE
        self._key = key
        self._lock = threading.Lock()
        self.done: dict[str, float] = {}
        if not self._file.exists() and (before / ARCHIVE).exists():
            shutil.unpack_archive(before / ARCHIVE, out)
        if self._file.exists():
            found = json.loads(self._file.read_text())
            if found["key"] != key:
                raise SetupError(
                    f"{out} holds results of {found['key']}; move them away or give another --out."
                )
            self.done = found["seconds"]

    def finish(self, command: str, seconds: float) -> None:
        """Record a command as done, with an atomic rename."""
        with self._lock:
            self.done[command] = round(seconds, 1)
            text = json.dumps({"key": self._key, "seconds": self.done}, indent=1)
            records.write(self._file, text + "\n")

    def pack(self) -> None:
        """Write all results into `ARCHIVE`."""
        out = self._file.parent
        new = out / f"{ARCHIVE}.new"
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(out.rglob("*")):
                if file.is_file() and not file.name.startswith(ARCHIVE):
                    archive.write(file, file.relative_to(out))
        new.replace(out / ARCHIVE)


def run_for(command: Sequence[str], env: dict[str, str], seconds: float, log: Path) -> int | None:
    """Run a command in its own process group; return its exit status, or None if it timed out.

    Its output goes to `log`.

    On a timeout it gets a SIGTERM, so that it can stop what it started. Whatever is left of its
    group after `GRACE_SECONDS` is killed.
    """
    with Background(command, cwd=ROOT, env=env, log=log, grace=GRACE_SECONDS) as process:
        RUNNING.add(process)
        try:
            status = process.wait(seconds)
        finally:
            RUNNING.discard(process)
        if status is not None:
            process.stop(grace=0)  # kill what the command left behind
        return status


def run_steps(
    machine: Machine,
    state: State,
    steps: Sequence[str],
    deadline: float,
    *,
    side_by_side: Collection[str] = (),
) -> int:
    """Run the outstanding commands of some steps.

    If a step fails, the others still run. Prints one line per step at the end.

    Args:
        machine: where the steps run.
        state: the completed commands.
        steps: the names of the steps.
        deadline: the time.monotonic() at which to stop.
        side_by_side: those of which the commands run at the same time, before the others, up to
            `MOST_AT_ONCE` of them.

    Returns:
        DONE, FAILED or MORE; FAILED takes precedence.
    """
    deadline -= GRACE_SECONDS
    outcomes: dict[str, tuple[str, int]] = {}
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        running = {}
        for step in steps:
            if step in side_by_side:
                try:
                    tasks = _outstanding(machine, state, step, deadline)
                except SetupError as error:
                    outcomes[step] = str(error), FAILED
                else:
                    running[step] = [pool.submit(task) for task in tasks]
        try:
            for step, futures in running.items():
                outcomes[step] = _sum_up([future.result() for future in futures])
        except BaseException:  # such as Ctrl-C, which their own sessions do not get
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(RUNNING):
                process.stop()
            raise
    for step in steps:
        if step not in outcomes:
            outcomes[step] = _run_in_turn(machine, state, step, deadline)
    print("\n".join(["", *(f"{step}: {outcomes[step][0]}" for step in steps)]), flush=True)
    results = {result for _, result in outcomes.values()}
    return next(result for result in (FAILED, MORE, DONE) if result in results)


def _outstanding(
    machine: Machine, state: State, step: str, deadline: float
) -> list[Callable[[], tuple[str, int]]]:
    """What runs each command of a step that is not done yet, as `_run_command`.

    Raises:
        SetupError: the step cannot run here.
    """
    env = machine.variables(step)
    commands = {f"{step} {i}": command for i, command in enumerate(machine.commands(step), 1)}
    return [
        partial(_run_command, machine, state, name, command=command, env=env, deadline=deadline)
        for name, command in commands.items()
        if name not in state.done
    ]


def _run_in_turn(machine: Machine, state: State, step: str, deadline: float) -> tuple[str, int]:
    """Run the outstanding commands of a step until one fails or the time is up."""
    outcomes = []
    try:
        for run in _outstanding(machine, state, step, deadline):
            outcomes.append(run())
            if outcomes[-1][1] != DONE:
                break
    except SetupError as error:
        return str(error), FAILED
    return _sum_up(outcomes)


def _sum_up(outcomes: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """The outcome of a step: that of its worst command."""
    for worst in (FAILED, MORE):
        for words, result in outcomes:
            if result == worst:
                return words, worst
    return "done", DONE


def _run_command(
    machine: Machine,
    state: State,
    name: str,
    *,
    command: list[str],
    env: dict[str, str],
    deadline: float,
) -> tuple[str, int]:
    """Run a command; returns words for its step's line, and its result."""
    left = deadline - time.monotonic()
    if left < START_SECONDS:
        return f"no time left for {name}: run it again", MORE
    log = machine.out / "logs" / f"{name.replace(' ', '-')}.txt"
    log.parent.mkdir(exist_ok=True)
    say(f"{name}: {left:.0f} s left, its output in logs/{log.name}")
    began = time.monotonic()
    try:
        result = run_for(command, env, left, log)
    except OSError as error:
        return f"{name} cannot run: {error}", FAILED
    if result is None:
        return f"{name} was stopped because the time was up: run it again", MORE
    if result:
        print(tail_of(log), file=sys.stderr, flush=True)
        return f"{name} failed with exit status {result}", FAILED
    state.finish(name, time.monotonic() - began)
    return "", DONE


def describe_gpu(python: str) -> str:
    """Describe the GPU and the relevant versions; empty if torch cannot use a GPU."""
    words = (
        "import torch, triton; "
        "print(torch.cuda.is_available() and ', '.join((torch.cuda.get_device_name(), "
        "'torch ' + torch.__version__, 'triton ' + triton.__version__)) or '')"
    )
    found = subprocess.run([python, "-c", words], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def key_of(machine: Machine, gpu: str) -> str:
    """What the results depend on: the GPU, the versions, and the measured sources."""
    folders = [ROOT / "python" / "sglang_lz", ROOT / "patches", ROOT / "bench"]
    found = files_below(*folders, ROOT / "tests" / "server", ROOT / "scripts" / "gpu")
    found += sorted((ROOT / "scripts").glob("*gpu*.*"))
    found += sorted((ROOT / "tests").glob("*.py")) + sorted((ROOT / "tests" / "unit").glob("*.py"))
    sources = [file for file in found if file.suffix in (".py", ".patch", ".lock", ".txt")]
    measured = digest(ROOT, sources)[:16]
    return f"{'rehearsal on a CPU' if machine.rehearse else gpu}, sources {measured}"


def _prepend(env: dict[str, str], name: str, path: Path) -> None:
    env[name] = os.pathsep.join(filter(None, [str(path), env.get(name)]))


CHECKS = ("kernel", "sglang", "compile", "sanitizer", "memory", "speculate")
STEPS = (*CHECKS, "step", "table", "bench", "burst")
NAMED = ("two-batch",)
"""Steps that run only when they are named, since one GPU cannot."""


def check(arguments: list[str]) -> int:
    """Run the script; returns its exit status."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description="Check and measure on the GPU of this machine, as far as the time goes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", nargs="*", help="which steps (default: all)")
    parser.add_argument("--out", type=Path, default=BEFORE, help="results (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=570, help="default: %(default)s")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU")
    given = parser.parse_args(arguments)
    every = (*STEPS, *NAMED)
    if unknown := [step for step in given.step if step not in every]:
        parser.error(f"no step is named {unknown[0]!r}; there are {', '.join(every)}")
    if given.seconds <= START_SECONDS + GRACE_SECONDS:
        parser.error(f"--seconds must be above {START_SECONDS + GRACE_SECONDS:g}")
    machine = Machine(given.out.resolve(), given.rehearse)
    gpu = "" if machine.rehearse else describe_gpu(machine.python)
    if not gpu and not machine.rehearse:
        raise SetupError(
            "there is no GPU here that torch can use; --rehearse runs the same steps on the CPU."
        )
    key = key_of(machine, gpu)
    say(key)
    state = State(machine.out, BEFORE, key)
    steps = [step for step in every if step in given.step] if given.step else STEPS
    try:
        # On few cores each would take as much longer as there are of them.
        side_by_side = () if machine.rehearse else CHECKS
        return run_steps(machine, state, steps, began + given.seconds, side_by_side=side_by_side)
    finally:
        state.pack()


if __name__ == "__main__":
    main(check)
