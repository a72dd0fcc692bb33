"""bench.serving from its command line to its result file, on upstream's own tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.configurations import on
from server.launch import Server

ROOT = Path(__file__).resolve().parents[2]


def run_bench(*arguments: str) -> str:
    """Its standard output."""
    command = [sys.executable, "-m", "bench.serving", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def assert_measured(out: Path, row: str, blocks: int) -> dict[str, Any]:
    result = json.loads(out.read_text())
    assert result["smoke"] is True
    assert result["sglang"]
    (name, found), *others = result["table"].items()
    assert (name, others, found["blocks"], len(found["pairs"])) == (row, [], blocks, blocks)
    columns = len(result["pair_columns"])
    assert all(len(pair) == columns and min(pair) > 0 for pair in found["pairs"])
    return result


def test_a_static_batch_is_measured_and_taken_up_again(tmp_path: Path) -> None:
    out = tmp_path / "static.json"
    prompt = '{"lz_include_prompt": true}'
    sizes = ("--input-len", "16", "--output-len", "8", "--fields", prompt)
    printed = run_bench("static", "--out", str(out), "--blocks", "1", *sizes)
    assert "Smoke test" in printed
    first = assert_measured(out, "demo, batch 4", 1)
    assert first["lz"] == {"lz_penalty": 0.15, "lz_include_prompt": True}
    again = run_bench("static", "--out", str(out), "--blocks", "1", *sizes)
    assert again == printed, "a finished measurement is not run again"


@pytest.mark.full
@on("overlap")
def test_a_server_is_measured_at_a_request_rate(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "live.json"
    # Long enough that no stream comes in a single event, which would have no inter-token latency.
    arguments = ("--rates", "inf", "--num-prompts", "4", "--input-len", "16", "--output-len", "48")
    where = ("--base-url", server.url, "--blocks", "1", "--out", str(out))
    assert "Smoke test" in run_bench("live", *where, *arguments)
    found = assert_measured(out, "server, inf requests/s", 1)["table"]["server, inf requests/s"]
    assert found["median_ttft_ms"]["off"] > 0
    assert found["mean_itl_ms"]["on"] > 0
