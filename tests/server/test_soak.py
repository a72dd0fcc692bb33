"""A short soak (tests/soak), and that it finds what is wrong."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from server.client import Lz
from soak.check import Answer, check, deviations, expected_rows
from soak.schedule import ANSWER, STREAM, TOKENS, Request

ROOT = Path(__file__).resolve().parents[2]
POSITIONS = 1_500
REQUEST = Request(prompt=[300, 301, 302] * 4, new_tokens=6, lz=Lz(0.5))


@pytest.mark.full
@pytest.mark.xdist_group("soak")
def test_a_short_soak(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = [sys.executable, "-m", "soak", "--positions", str(POSITIONS), "--seed", "7"]
    command += ["--configuration", "tiny-pool", "--configuration", "ngram", "--kill-every", "2"]
    command += ["--wave-size", "80", "--keep-caches"]
    done = subprocess.run(
        [*command, "--logs", str(tmp_path / "logs"), "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    result = json.loads(out.read_text())
    assert result["positions"] >= POSITIONS
    assert result["deviations"] == result["errors"] == 0
    assert all(one["starts"] > 1 for one in result["configurations"].values())
    assert result["events"]["refused"] > 0
    assert result["kinds"]["retracted"]["positions"] > 0


def greedy() -> tuple[list[int], np.ndarray]:
    """The outputs of the request, as the contract has them, and their logprobs."""
    tokens: list[int] = []
    for _ in range(REQUEST.new_tokens):
        rows = expected_rows(REQUEST, [*tokens, 0])
        tokens.append(int(rows[-1].argmax()))
    return tokens, expected_rows(REQUEST, tokens)


def test_a_wrong_answer_deviates_from_the_contract() -> None:
    tokens, rows = greedy()
    assert max(deviations(REQUEST, tokens, rows)) < 1e-6
    wrong = rows.copy()
    wrong[3, 17] -= 0.001
    found = deviations(REQUEST, tokens, wrong)
    assert math.isclose(found[3], 0.001, rel_tol=1e-3)
    assert max(found[:3] + found[4:]) < 1e-6
    without = expected_rows(Request(REQUEST.prompt, REQUEST.new_tokens), tokens)
    assert max(deviations(REQUEST, tokens, without)) > 0.01
    other = [*tokens[:2], (tokens[2] + 1) % rows.shape[1], *tokens[3:]]
    assert deviations(REQUEST, other, None)[2] > 0.01


def failure(how: str, content: str) -> str:
    verdicts = check(Answer("overlap", "wave", how, REQUEST, REQUEST.body(), content.encode()))
    (found,) = [verdict.failure for verdict in verdicts if verdict.failure is not None]
    return str(found["reason"])


def test_a_wrong_report_is_a_failure() -> None:
    tokens, _ = greedy()
    wrong = [*tokens[:5], tokens[5] + 1]
    meta = {"finish_reason": {"type": "length"}}
    answer = json.dumps({"output_ids": wrong, "meta_info": meta})
    assert "1 of 6 positions deviate, the first at 5" in failure(TOKENS, answer)
    short = json.dumps({"output_ids": tokens[:4], "meta_info": meta})
    assert "4 of 6 tokens for reason `length`" in failure(ANSWER, short)
    events = [{"output_ids": [1, 2], "meta_info": {}}, {"output_ids": [1, 3, 4], "meta_info": {}}]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    assert "an event has other tokens" in failure(STREAM, stream)
    assert "an error" in failure(STREAM, 'data: {"error": {"message": "no"}}\n\n')
