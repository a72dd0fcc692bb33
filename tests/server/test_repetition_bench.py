"""bench.repetition from its command line to its result file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from server.configurations import on
from server.launch import Server

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = (  # whose greedy answers loop within 100 tokens
    "Name three built-in functions.",
    "Explain exceptions in Python.",
)


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


@pytest.mark.full
@on("dp2")
def test_a_run_gives_the_same_samples_whatever_the_batch(server: Server, tmp_path: Path) -> None:
    results = []
    for out, concurrency in (("one", 8), ("two", 3)):
        run(command(server, tmp_path, out, concurrency))
        results.append(json.loads((tmp_path / out / "result.json").read_text()))
    lines = (tmp_path / "one" / "samples.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    assert len(samples) == len(PROMPTS) * 2 * 2  # penalties and temperatures
    assert all(len(line["token_ids"]) == line["completion_tokens"] == 128 for line in samples)

    settings = json.loads((tmp_path / "one" / "run.json").read_text())
    assert settings["seed_honoured"] is True
    assert settings["unit"] == "tokens"
    first, second = (result["cells"] for result in results)
    assert first == second
    cells = {(cell["variant"], cell["temperature"]): cell for cell in first}
    none, lz = cells["none", 0.0], cells["lz 0.15", 0.0]
    assert none["degenerate"]["mean"] > lz["degenerate"]["mean"] == 0
    assert lz["against_none"]["degenerate"]["mean"] == -none["degenerate"]["mean"]
