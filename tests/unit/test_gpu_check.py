"""The decisions of scripts/gpu-check and scripts/gpu-bundle, without a GPU."""

from __future__ import annotations

import importlib
import json
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
environment = importlib.import_module("_environment")
gpu_bundle = importlib.import_module("_gpu_bundle")
gpu_check = importlib.import_module("_gpu_check")
stand_in = importlib.import_module("gpu.cutedsl_dual_gemm")


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
        "kernel: 0 of 1 parts done, stopped because the time was up: run it again",
        "bench: 0 of 1 parts done, no time left: run it again",
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
    first.rename(tmp_path / "before")
    state = gpu_check.State(second, tmp_path / "before", "key")
    assert (second / "ran").read_text() == "1"
    again = FakeMachine(second, kernel=[FAIL])
    assert gpu_check.run_steps(again, state, ["kernel"], time.monotonic() + 9) == gpu_check.DONE


def test_results_of_other_sources_are_refused(tmp_path: Path, quick: None) -> None:
    machine = FakeMachine(tmp_path, kernel=[NOTE.format("1")])
    run(machine, "kernel", key="the GPU of before")
    with pytest.raises(environment.SetupError, match="holds results of the GPU of before"):
        run(machine, "kernel", key="another")
    assert list(json.loads((tmp_path / gpu_check.STATE).read_text())["seconds"]) == ["kernel 1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kernels"], "no step is named 'kernels'; there are kernel, bench, sglang, table"),
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
def test_every_command_names_a_file_of_the_checkout(tmp_path: Path, rehearse: bool) -> None:
    machine = gpu_check.Machine(tmp_path, rehearse)
    for step in gpu_check.STEPS:
        for command in machine.commands(step):
            files = [word for word in command if word.endswith(".py")]
            assert len(files) == 1
            assert Path(files[0]).is_file()


def wheel(path: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_a_bundle_holds_what_is_needed(tmp_path: Path) -> None:
    kept: dict[str, bytes] = {"sglang/srt/a.py": b"a", "sgl_kernel/sm90/common_ops.abi3.so": b"b"}
    dropped = {"sglang/test/c.py": b"c", "sgl_kernel/flash_ops.abi3.so": b"d"}
    replaced = {gpu_bundle.STOOD_IN_FOR: b"import cutlass"}
    made = wheel(tmp_path / "a.whl", **kept, **dropped, **replaced)
    bundle = tmp_path / "bundle.zip"
    size = gpu_bundle.pack([made], bundle, 1)
    assert size == bundle.stat().st_size
    with zipfile.ZipFile(bundle) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == kept | {gpu_bundle.STOOD_IN_FOR: gpu_bundle.STAND_IN.read_bytes()}
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
