"""scripts/gpu-check's checks of real servers, rehearsed on the CPU: the same code, small."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
gpu_check = importlib.import_module("_gpu_check")
gpu_server = importlib.import_module("_gpu_server")

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("gpu rehearsal")]


def test_trees_that_change_their_size() -> None:
    """Two servers; `chain` and `tree` differ in their flags only."""
    found = gpu_server.CHECKS["adaptive"](True)
    for name in ("overlap", "no overlap"):
        assert found[name]["nodes"] > 20
        assert len(found[name]["sizes of trees"]) > 1
    assert found["against each other"]["answers"] == 4


@pytest.mark.parametrize("check", ["dflash", "dspark"])
def test_blocks(check: str) -> None:
    found = gpu_server.CHECKS[check](True)
    for name in ("overlap", "no overlap"):
        assert found[name]["nodes"] > 20
        assert found[name]["sizes of trees"] == [6]


def test_bursts_beside_streams_and_alone() -> None:
    found = gpu_server.CHECKS["burst"](True)
    assert len(found["seconds"]) == 8
    for row in found["seconds"]:
        assert ("gap" in row) == (row["running"] > 0)
        assert (row["plan"] > 0) == (row["apply"] > 0) == (row["lz_penalty"] > 0)


def test_a_server_without_room_for_its_windows(tmp_path: Path) -> None:
    """As scripts/gpu-check calls each check."""
    out = tmp_path / "memory.json"
    command = [sys.executable, "-B", str(SCRIPTS / "_gpu_server.py"), "memory", "--rehearse"]
    done = subprocess.run(
        [*command, "--out", str(out)], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--lz-max-window-size" in json.loads(out.read_text())["sentence"]


def test_a_decode_step_is_timed_in_every_way(tmp_path: Path) -> None:
    machine = gpu_check.Machine(tmp_path, rehearse=True)
    (command,) = machine.commands("step")
    done = subprocess.run(
        command, env=machine.variables("step"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "step.json").read_text())
    ways = [way for way, *_ in result["runs"]]
    assert ways == [*result["ways"], *reversed(result["ways"])]
    assert set(result["longer_than_off_us"]) == set(ways) - {"off"}
    assert all(min(times) > 0 for _, *times in result["runs"])
