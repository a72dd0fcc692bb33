"""scripts/gpu-check's checks of real servers, rehearsed on the CPU: the same code, small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def rehearse(check: str, out: Path) -> dict[str, Any]:
    """The result of a check."""
    script = ROOT / "scripts" / "_gpu_server.py"
    command = [sys.executable, "-B", str(script), check, "--rehearse", "--out", str(out)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.xdist_group("gpu rehearsal")
def test_trees_that_change_their_size(tmp_path: Path) -> None:
    """Two servers; `chain` and `tree` differ in their flags only."""
    found = rehearse("adaptive", tmp_path / "adaptive.json")
    for name in ("overlap", "no overlap"):
        assert found[name]["nodes"] > 20
        assert len(found[name]["sizes of trees"]) > 1
    assert found["against each other"]["answers"] == 4


@pytest.mark.xdist_group("gpu rehearsal")
@pytest.mark.parametrize("check", ["dflash", "dspark"])
def test_blocks(tmp_path: Path, check: str) -> None:
    found = rehearse(check, tmp_path / f"{check}.json")
    for name in ("overlap", "no overlap"):
        assert found[name]["nodes"] > 20
        assert found[name]["sizes of trees"] == [6]


@pytest.mark.xdist_group("gpu rehearsal")
def test_bursts_beside_streams_and_alone(tmp_path: Path) -> None:
    found = rehearse("burst", tmp_path / "burst.json")
    assert len(found["seconds"]) == 8
    for row in found["seconds"]:
        assert ("gap" in row) == (row["running"] > 0)
        assert (row["plan"] > 0) == (row["apply"] > 0) == (row["lz_penalty"] > 0)


@pytest.mark.xdist_group("gpu rehearsal")
def test_a_server_without_room_for_its_windows(tmp_path: Path) -> None:
    found = rehearse("memory", tmp_path / "memory.json")
    assert "--lz-max-window-size" in found["sentence"]
