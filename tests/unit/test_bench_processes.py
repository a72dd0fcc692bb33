"""Processes in the background: awaited, and ended with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.processes import Background, ProcessError

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "import time; time.sleep(60)"
# A leader that starts a child and, told to end, lets the child end in its own time.
LEADER = """
import pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], str(folder)])
def end(*_):
    (folder / "end").touch()
    child.wait() if sys.argv[3:] else None
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
(folder / "child").write_text(str(child.pid))
time.sleep(60)
"""
# A child that ends when its leader says so, and notes a signal of its own.
OBEDIENT = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (folder / "signalled").touch())
(folder / "ready").touch()
while not (folder / "end").exists():
    time.sleep(0.01)
time.sleep(0.3)
(folder / "tidied").touch()
"""


def python(text: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", text, *map(str, arguments)]


def runs(pid: int) -> bool:
    status = Path("/proc", str(pid), "stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] not in "ZX"


def await_file(path: Path) -> str:
    deadline = time.monotonic() + 30
    while not (path.exists() and (path.stat().st_size or path.name == "ready")):
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return path.read_text()


@pytest.mark.parametrize("waits", [True, False])
def test_only_the_leader_gets_the_signal_and_its_group_may_clean_up(
    tmp_path: Path, waits: bool
) -> None:
    """Also when the leader ends before its children."""
    command = python(LEADER, tmp_path, OBEDIENT, *(["wait"] if waits else []))
    with Background(command, grace=30) as process:
        child = int(await_file(tmp_path / "child"))
        await_file(tmp_path / "ready")
        began = time.monotonic()
    assert time.monotonic() - began < 20, "no longer than the group needs"
    assert process.poll() == 5
    assert (tmp_path / "tidied").exists()
    assert not (tmp_path / "signalled").exists()
    assert not runs(child)


def test_an_early_end_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "new" / "log"
    text = "for i in range(100): print('line', i)\nraise SystemExit(3)"
    with (
        Background(python(text), name="the tool", log=log) as process,
        pytest.raises(ProcessError, match="the tool ended with status 3") as caught,
    ):
        process.wait_until(lambda: False, 60)
    assert str(caught.value).endswith("line 98\nline 99")
    assert "line 59" not in str(caught.value)


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    text = (
        "import sys; from pathlib import Path; from bench.processes import Background\n"
        "process = Background(sys.argv[2:], ends_with_us=True)\n"
        "Path(sys.argv[1]).write_text(str(process.pid))\n" + SLEEP
    )
    note = tmp_path / "pid"
    parent = subprocess.Popen(python(text, note, *python(SLEEP)), cwd=ROOT)
    try:
        child = int(await_file(note))
        assert runs(child)
        os.kill(parent.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while runs(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
