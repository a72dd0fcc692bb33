"""A run of tests/hostile on a server that is there: what it drives, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from server.configurations import on
from server.launch import Server

ROOT = Path(__file__).resolve().parents[2]
ATTACK = "value lz_onset"


@on("overlap")
def test_an_attack_beside_other_clients(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "hostile.json"
    command = [sys.executable, "-m", "hostile", "--url", server.url, "--only", ATTACK]
    done = subprocess.run(
        [*command, "--seconds", "300", "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert out.is_file(), done.stdout[-5000:]
    ordinary, row = json.loads(out.read_text())["rows"]
    assert ordinary["item"] == "-"
    # Waits depend on what else the machine does.
    assert row["attack"] == ATTACK
    assert row["lived"]
    assert row["streams"]
    assert not row["wrong"] + ordinary["wrong"]
    assert {one["answer"].split()[0] for one in row["answers"]} == {"200", "400:"}
    assert row["mb_before"] > 100
    assert all(longest > 0 for longest in row["longest"].values())
