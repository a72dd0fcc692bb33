"""bench.repetition from its command line to its result file, killed in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from server.configurations import on
from server.launch import Server

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = (  # whose greedy answers loop within 100 tokens
    "Name three built-in functions.",
    "Explain exceptions in Python.",
)
SAMPLES = len(PROMPTS) * 2 * 2  # penalties and temperatures


def command(server: Server, tmp_path: Path, out: str, concurrency: int) -> list[str]:
    problems = tmp_path / "problems.jsonl"
    rows = [{"prompt": prompt, "answer": "no"} for prompt in PROMPTS]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *(sys.executable, "-m", "bench.repetition", "run", "--base-url", server.url, "--task"),
        *(f"jsonl={problems}", "--out", str(tmp_path / out), "--max-tokens", "128"),
        *("--ignore-eos", "--seeds", "1", "--temperature", "0", "0.7", "--penalty", "none"),
        *("--penalty", "lz_penalty=0.15,lz_cost=marginal", "--concurrency", str(concurrency)),
    ]


def run(arguments: list[str]) -> None:
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def samples(out: Path) -> list[dict[str, Any]]:
    """What a run directory holds so far, in one order, without what the clock says."""
    file = out / "samples.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    found = [{**json.loads(line), "seconds": None} for line in lines]
    return sorted(found, key=lambda line: (line["item"], line["variant"], line["temperature"]))


@pytest.mark.full
@on("dp2")
def test_a_killed_run_gives_the_samples_of_a_whole_one(server: Server, tmp_path: Path) -> None:
    run(command(server, tmp_path, "whole", 8))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with subprocess.Popen(command(server, tmp_path, "killed", 3), cwd=ROOT) as process:
        while len(samples(killed)) < SAMPLES // 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    before = samples(killed)
    assert SAMPLES // 3 <= len(before) < SAMPLES
    run(command(server, tmp_path, "killed", 5))

    found = samples(killed)
    assert len(found) == SAMPLES
    assert all(line in found for line in before), "what was there is kept as it was"
    assert found == samples(whole), "seeds count, whatever the batch"
    assert all(len(line["token_ids"]) == line["completion_tokens"] == 128 for line in found)

    settings = json.loads((whole / "run.json").read_text())
    assert settings["seed_honoured"] is True
    assert settings["unit"] == "tokens"
    first, second = (json.loads((out / "result.json").read_text()) for out in (whole, killed))
    assert first["cells"] == second["cells"]
    cells = {(cell["variant"], cell["temperature"]): cell for cell in first["cells"]}
    assert {cell["samples"] for cell in cells.values()} == {len(PROMPTS)}
    none, lz = cells["none", 0.0], cells["lz 0.15", 0.0]
    assert none["degenerate"]["mean"] > lz["degenerate"]["mean"] == 0
    assert lz["against_none"]["degenerate"]["mean"] == -none["degenerate"]["mean"]
