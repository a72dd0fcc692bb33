"""The decisions of scripts/gpu-check and scripts/gpu-bundle, without a GPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trees import Tree

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
environment = importlib.import_module("_environment")
gpu_bundle = importlib.import_module("_gpu_bundle")
gpu_check = importlib.import_module("_gpu_check")
gpu_server = importlib.import_module("_gpu_server")
stand_in = importlib.import_module("gpu.cutedsl_dual_gemm")

pytestmark = pytest.mark.full


class FakeMachine:
    """A machine whose steps are given programs of Python.

    Attributes:
        programs: of each step.
        out: folder of the results; the programs run with its path as their only argument.
    """

    def __init__(self, out: Path, **programs: list[str]) -> None:
        self.out = out
        self.programs = programs

    def commands(self, step: str) -> list[list[str]]:
        return [[sys.executable, "-c", text, str(self.out)] for text in self.programs[step]]

    def variables(self, step: str) -> dict[str, str]:
        if step == "table":
            raise environment.SetupError("there is no SGLang.")
        return {}


NOTE = "import sys; open(sys.argv[1] + '/ran', 'a').write({!r})"
FAIL = "raise SystemExit(7)"
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "START_SECONDS", 0.2)
    monkeypatch.setattr(gpu_check, "GRACE_SECONDS", 0.5)


def run(machine: FakeMachine, *steps: str, seconds: float = 20, key: str = "key") -> int:
    state = gpu_check.State(machine.out, machine.out / "before", key)
    status: int = gpu_check.run_steps(machine, state, steps, time.monotonic() + seconds)
    return status


def test_what_is_done_is_not_done_again(tmp_path: Path, quick: None) -> None:
    broken = FakeMachine(tmp_path, kernel=[NOTE.format("1"), FAIL], bench=[NOTE.format("2")])
    assert run(broken, "kernel", "bench") == gpu_check.FAILED
    mended = FakeMachine(tmp_path, kernel=[FAIL, NOTE.format("3")], bench=[FAIL])
    assert run(mended, "kernel", "bench") == gpu_check.DONE
    assert (tmp_path / "ran").read_text() == "123"


def test_a_command_is_stopped_in_time_and_run_again(
    tmp_path: Path,
    quick: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_check, "GRACE_SECONDS", 18)  # for a machine that stalls
    slow = FakeMachine(tmp_path, kernel=[SLEEP], bench=[NOTE.format("1")])
    began = time.monotonic()
    assert run(slow, "kernel", "bench", seconds=20) == gpu_check.MORE
    assert time.monotonic() - began < 20
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "kernel: kernel 1 was stopped because the time was up: run it again",
        "bench: no time left for bench 1: run it again",
    ]
    fast = FakeMachine(tmp_path, kernel=[NOTE.format("2")], bench=[NOTE.format("3")])
    assert run(fast, "kernel", "bench", seconds=60) == gpu_check.DONE
    assert (tmp_path / "ran").read_text() == "23"


def test_what_is_stopped_leaves_no_process_behind(tmp_path: Path, quick: None) -> None:
    deaf = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "open(sys.argv[1] + '/pid', 'w').write(str(os.fork() or os.getpid())); time.sleep(60)"
    )
    assert run(FakeMachine(tmp_path, kernel=[deaf]), "kernel", seconds=4) == gpu_check.MORE
    status = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_step_that_cannot_run_does_not_keep_others_from_it(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = FakeMachine(tmp_path, table=[FAIL], bench=[NOTE.format("1")])
    assert run(machine, "table", "bench") == gpu_check.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["table: there is no SGLang.", "bench: done"]


def test_results_that_came_back_are_taken_over(tmp_path: Path, quick: None) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(FakeMachine(first, kernel=[NOTE.format("1")]), "kernel") == gpu_check.DONE
    gpu_check.State(first, tmp_path / "none", "key").pack()
    (tmp_path / "before").mkdir()
    (first / gpu_check.ARCHIVE).rename(tmp_path / "before" / gpu_check.ARCHIVE)
    state = gpu_check.State(second, tmp_path / "before", "key")
    assert (second / "ran").read_text() == "1"
    again = FakeMachine(second, kernel=[FAIL])
    assert gpu_check.run_steps(again, state, ["kernel"], time.monotonic() + 9) == gpu_check.DONE


def test_steps_side_by_side_run_all_their_commands_at_once(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of two commands waits for what the other writes; one more fails, one more comes last."""
    meets = (
        "import pathlib, sys, time; out = pathlib.Path(sys.argv[1]); (out / {!r}).touch()\n"
        "while not (out / {!r}).exists(): time.sleep(0.01)"
    )
    last = "import pathlib, sys; assert {{'a', 'b'}} <= {{p.name for p in {}.iterdir()}}"
    machine = FakeMachine(
        tmp_path,
        bench=[last.format("pathlib.Path(sys.argv[1])")],
        kernel=[meets.format("a", "b"), FAIL],
        compile=[meets.format("b", "a")],
        table=[],
    )
    state = gpu_check.State(tmp_path, tmp_path / "before", "key")
    status = gpu_check.run_steps(
        machine,
        state,
        ["bench", "kernel", "compile", "table"],
        time.monotonic() + 60,
        side_by_side=("kernel", "compile", "table"),
    )
    assert status == gpu_check.FAILED
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "bench: done",
        "kernel: kernel 2 failed with exit status 7",
        "compile: done",
        "table: there is no SGLang.",
    ]
    assert set(state.done) == {"bench 1", "kernel 1", "compile 1"}


def test_an_interruption_ends_what_runs_side_by_side(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = "import os, sys, time; open(sys.argv[1] + '/pid', 'w').write(str(os.getpid()))"
    machine = FakeMachine(tmp_path, kernel=[f"{begins}; time.sleep(600)"], bench=[FAIL])
    state = gpu_check.State(tmp_path, tmp_path / "before", "key")

    def interrupt(outcomes: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_check, "_sum_up", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gpu_check.run_steps(
            machine, state, ["bench", "kernel"], time.monotonic() + 900,
            side_by_side=("bench", "kernel"),
        )  # fmt: skip
    pid = tmp_path / "pid"
    assert not pid.exists() or not Path("/proc", pid.read_text()).exists()


def test_results_of_other_sources_are_refused(tmp_path: Path, quick: None) -> None:
    machine = FakeMachine(tmp_path, kernel=[NOTE.format("1")])
    run(machine, "kernel", key="the GPU of before")
    with pytest.raises(environment.SetupError, match="holds results of the GPU of before"):
        run(machine, "kernel", key="another")
    assert list(json.loads((tmp_path / gpu_check.STATE).read_text())["seconds"]) == ["kernel 1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kernels"], "no step is named 'kernels'; there are kernel, sglang, compile, sanitizer"),
        (["--seconds", "45"], "--seconds must be above 45"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_check.check(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_without_a_gpu_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(environment.SetupError, match=r"^there is no GPU here .*--rehearse.*\.$"):
        gpu_check.check(["--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rehearse", [False, True])
def test_every_command_names_a_file_of_the_checkout(
    tmp_path: Path, rehearse: bool, sanitizer: Path
) -> None:
    machine = gpu_check.Machine(tmp_path, rehearse)
    for step in (*gpu_check.STEPS, *gpu_check.NAMED):
        for command in machine.commands(step):
            files = [Path(word) for word in command if word.endswith(".py")]
            modules = [word.replace(".", "/") for word in command if word.startswith("bench.")]
            (file,) = [*files, *(SCRIPTS.parent / name / "__main__.py" for name in modules)]
            assert file.is_file()


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compute-sanitizer on the PATH; it notes its arguments and ends like the real one."""
    path = tmp_path / "bin" / gpu_check.SANITIZER
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/looked\nexit ${{FOUND:-0}}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return path


def test_the_sanitizer_looks_with_both_tools_and_its_finds_fail_the_step(
    tmp_path: Path, quick: None, sanitizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(out: Path) -> int:
        machine = gpu_check.Machine(out, rehearse=False)
        state = gpu_check.State(out, tmp_path / "before", "key")
        deadline = time.monotonic() + 60
        return int(gpu_check.run_steps(machine, state, ["sanitizer"], deadline))

    assert steps(tmp_path / "clean") == gpu_check.DONE
    looked = (tmp_path / "looked").read_text().splitlines()
    for tool, line in zip(("memcheck", "racecheck"), looked, strict=True):
        assert line.startswith(f"--error-exitcode 9 --tool {tool} --log-file {tmp_path}/clean/")
    monkeypatch.setenv("FOUND", "9")
    assert steps(tmp_path / "found") == gpu_check.FAILED


def test_without_a_sanitizer_the_step_says_so_but_is_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(environment.SetupError, match=r"^there is no compute-sanitizer here"):
        gpu_check.Machine(tmp_path, rehearse=False).commands("sanitizer")
    (command,) = gpu_check.Machine(tmp_path, rehearse=True).commands("sanitizer")
    # As its own process would: whether the expression still names tests.
    found = subprocess.run(
        [*command, "--collect-only"], cwd=SCRIPTS.parent, capture_output=True, text=True, check=True
    )
    for test in ("torch_operators[0-", "whenever_it_runs", "links_that_go_round"):
        assert test in found.stdout


@pytest.mark.parametrize("command", range(len(gpu_check.COMPILED)))
def test_a_server_compiles_nothing_after_its_warm_up(tmp_path: Path, command: int) -> None:
    """By Triton's own decisions for Hopper, no GPU needed."""
    machine = gpu_check.Machine(tmp_path, rehearse=True)
    words = machine.commands("compile")[command]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    (result,) = (json.loads(path.read_text()) for path in tmp_path.glob("compile-*.json"))
    assert result["warm-up"]
    assert result["after warm-up"] == []


def test_a_late_compilation_is_seen(tmp_path: Path) -> None:
    program = (
        "import _gpu_compile as c; warm_up = c.warm_up; "
        "c.warm_up = lambda device, capacity, tree_sizes: warm_up(device, capacity, []); c.main()"
    )
    out = tmp_path / "out.json"
    found = subprocess.run(
        [sys.executable, "-c", program, "--rehearse", "--out", str(out), "--nodes", "2"],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "compiled after the warm-up: _verify_kernel, _accept_kernel" in found.stderr
    assert json.loads(out.read_text())["after warm-up"][0] == "_verify_kernel"


def test_the_way_to_every_node() -> None:
    tree = Tree([7, 1, 2, 3, 1], [0, 0, 0, 2, 3])
    found = gpu_server.paths(*tree.links())
    assert found == {node: tree.path(node) for node in range(5)}


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The watch's record of one draft tree whose penalty is the oracle's, and its request."""
    lz = gpu_server.Lz(0.5, 16, 4, True, "rate")
    prompt, outputs = [5, 6, 7, 5, 6], [7, 5, 6]
    tree = Tree([5, 6, 6, 7], [0, 0, 1, 2])  # its root is the second output
    first, sibling = tree.links()
    after = [
        gpu_server.change(prompt, [7, *(tree.tokens[step] for step in tree.path(node))], lz)
        for node in range(4)
    ]
    np.savez(
        tmp_path / "1-0.npz",
        before=np.zeros((4, len(after[0]))),
        after=np.array(after),
        root=np.array([len(prompt) + 1]),
        tokens=np.array([tree.tokens]),
        first_child=np.array([first]),
        next_sibling=np.array([sibling]),
    )
    line = {"file": "1-0.npz", "requests": ["a"]}
    (tmp_path / "1-trees.jsonl").write_text(json.dumps(line) + "\n")
    sample = gpu_server.Sample(prompt, outputs, np.zeros((3, 1)), {})
    return tmp_path, {"a": (gpu_server.Case(prompt, 3, lz), sample)}


def test_every_node_of_a_recorded_tree_is_judged(recorded: tuple[Path, dict[str, Any]]) -> None:
    folder, known = recorded
    found = gpu_server.judge_trees(folder, known)
    assert found == {"nodes": 4, "sizes of trees": [4], "deviation of a node, nats": 0.0}
    arrays = dict(np.load(folder / "1-0.npz"))
    arrays["after"][3, 9] += 0.01
    np.savez(folder / "1-0.npz", **arrays)
    with pytest.raises(gpu_server.CheckError, match=r"penalty of node 3 of a is 0\.01 off"):
        gpu_server.judge_trees(folder, known)
    case, sample = known["a"]
    other = gpu_server.Sample(sample.prompt, [7, 6, 6], sample.rows, {})
    with pytest.raises(gpu_server.CheckError, match="at output 1 has another root"):
        gpu_server.judge_trees(folder, {"a": (case, other)})


def answer(outputs: list[int], *likely: tuple[float, float]) -> Any:
    """What a server did with one request; its rows are the logprobs of tokens 0 and 1."""
    sample = gpu_server.Sample([3], outputs, np.array(likely), {})
    return gpu_server.Run([sample], {gpu_server.ALLOWED: 5e-4})


def test_answers_of_two_servers_are_held_against_each_other() -> None:
    one = answer([0, 1], (-0.1, -2.4), (-1.0, -0.5))
    found = gpu_server.compare(one, one)
    assert found == {"answers": 1, "token for token": 1, "difference, nats": 0.0}
    with pytest.raises(gpu_server.CheckError, match=r"answer 0 differs by 0\.002 nats"):
        gpu_server.compare(one, answer([0, 1], (-0.102, -2.402), (-1.0, -0.5)))
    with pytest.raises(gpu_server.CheckError, match="parts at token 1 without a near tie"):
        gpu_server.compare(one, answer([0, 0], (-0.1, -2.4), (-1.0, -0.5)))


def test_answers_may_part_at_a_near_tie_and_differ_after_it() -> None:
    one = answer([0, 1], (-0.7, -0.7), (-1.0, -0.5))
    other = answer([1, 1], (-0.7, -0.7), (-9.0, -0.1))
    assert gpu_server.compare(one, other)["token for token"] == 0


def test_only_a_gpu_may_be_noisy_and_not_too_much() -> None:
    assert gpu_server.allowed_by(1e-5, rehearse=True) == gpu_server.TOLERANCE
    assert gpu_server.allowed_by(1e-5, rehearse=False) == gpu_server.TOLERANCE
    assert gpu_server.allowed_by(0.02, rehearse=False) == pytest.approx(0.08)
    for noise, rehearse in ((3e-4, True), (0.3, False)):
        with pytest.raises(gpu_server.CheckError, match="without the penalty differ"):
            gpu_server.allowed_by(noise, rehearse)


def test_drafts_that_show_nothing_fail_the_check() -> None:
    def run(correct: int, nodes: int) -> Any:
        meta = {"spec_num_correct_drafts": correct, "spec_num_proposed_drafts": 9}
        sample = gpu_server.Sample([3], [], np.zeros((0, 2)), meta)
        return gpu_server.Run([sample], {"nodes": nodes})

    gpu_server.drafted(run(3, 1))
    for correct, nodes in ((0, 1), (9, 1), (3, 0)):
        with pytest.raises(gpu_server.CheckError):
            gpu_server.drafted(run(correct, nodes))


SENTENCE = (
    "RuntimeError: the LZ penalty cannot reserve 99 bytes on cuda: lower --lz-max-window-size, "
    "which is 1024, or --max-running-requests."
)


@pytest.mark.parametrize(
    ("status", "log", "words"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory.\n", "no sentence names the penalty"),
        (-9, f"{gpu_server.READY}\n{SENTENCE}\n", "the server started"),
        (0, f"{SENTENCE}\n", "the server started"),
    ],
)
def test_a_server_without_room_must_say_what_to_change(status: int, log: str, words: str) -> None:
    found = gpu_server.judge_exhaustion(-9, f"before\n{SENTENCE}\nafter\n")
    assert found == {"exit status": -9, "sentence": SENTENCE}
    with pytest.raises(gpu_server.CheckError, match=words):
        gpu_server.judge_exhaustion(status, log)


def test_two_batches_need_two_gpus_and_deepep() -> None:
    with pytest.raises(gpu_server.CheckError, match="needs two GPUs and DeepEP"):
        gpu_server.two_batch(rehearse=False, gpus=1)


def wheel(path: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_a_bundle_holds_what_is_needed(tmp_path: Path) -> None:
    kept: dict[str, bytes] = {"sglang/srt/a.py": b"a", "sgl_kernel/sm90/common_ops.abi3.so": b"b"}
    dropped = {"sglang/test/c.py": b"c", "sgl_kernel/flash_ops.abi3.so": b"d"}
    stand_ins = {name: file.read_bytes() for name, file in gpu_bundle.STAND_INS.items()}
    replaced = dict.fromkeys(stand_ins, b"import cutlass")
    made = wheel(tmp_path / "a.whl", **kept, **dropped, **replaced)
    bundle = tmp_path / "bundle.zip"
    size = gpu_bundle.pack([made], bundle, 1)
    assert size == bundle.stat().st_size
    with zipfile.ZipFile(bundle) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == kept | stand_ins
    first = bundle.read_bytes()
    gpu_bundle.pack([made], bundle, 1)
    assert bundle.read_bytes() == first


def test_a_bundle_that_is_too_large_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    bundle.write_bytes(b"the one before")
    made = wheel(tmp_path / "a.whl", **{"a.py": bytes(range(256))})
    with pytest.raises(environment.SetupError, match=r"0\.0 MiB, 0\.0001 MiB are allowed"):
        gpu_bundle.pack([made], bundle, 0.0001)
    assert bundle.read_bytes() == b"the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.whl", "bundle.zip"]


def test_a_bundle_is_unpacked_once(tmp_path: Path) -> None:
    bundle = wheel(tmp_path / "bundle.zip", **{"package/a.py": b"a"})
    site = gpu_check.unpack(bundle, tmp_path / "site")
    (site / "package" / "a.py").write_text("kept")
    assert gpu_check.unpack(bundle, tmp_path / "site") == site
    assert (site / "package" / "a.py").read_text() == "kept"
    wheel(bundle, **{"package/a.py": b"b"})
    newer = gpu_check.unpack(bundle, tmp_path / "site")
    assert (newer / "package" / "a.py").read_text() == "b"
    assert not site.exists()
    with pytest.raises(environment.SetupError, match=r"make it with scripts/gpu-bundle"):
        gpu_check.unpack(tmp_path / "missing.zip", tmp_path / "site")


def test_every_requirement_is_pinned_by_its_hash() -> None:
    text = gpu_bundle.REQUIREMENTS.read_text().replace("\\\n", "")
    lines: list[Any] = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert all("==" in name and digest.startswith("--hash=sha256:") for name, digest in lines)


def test_the_stand_in_is_never_used() -> None:
    """Upstream asks it for the mode's name and whether there is such a kernel here."""
    mode = stand_in.DualGemmQuantMode.UNQUANT
    assert not stand_in.can_use_dual_gemm(stand_in.MAX_DUAL_GEMM_DECODE_TOKENS, 1536, 8960, mode)
