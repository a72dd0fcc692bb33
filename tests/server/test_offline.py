"""The contract through the offline Engine, in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from server.client import OFF, flat_rows, request_body, to_sample
from server.contract import SUMMARY, TOLERANCE, deviations
from server.launch import Config, environment, model_path
from server.prompts import mixed

ENGINE = {
    "device": "cpu",
    "dtype": "float32",
    "max_total_tokens": 8192,
    "max_running_requests": 16,
    "log_level": "error",
}
TIMEOUT_SECONDS = 300


def run_engine(requests: list[dict[str, Any]], folder: Path) -> list[Any]:
    """The Engine's answers to these requests."""
    answers = folder / "answers.json"
    job = {"engine": {**ENGINE, "model_path": str(model_path())}, "requests": requests}
    script = Path(__file__).with_name("offline_engine.py")
    done = subprocess.run(
        [sys.executable, str(script), str(answers)],
        input=json.dumps(job),
        env={**environment(Config("engine")), "PYTHONUNBUFFERED": "1"},
        cwd=os.getcwd(),
        text=True,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answered = json.loads(answers.read_text())
    assert isinstance(answered, list)
    return answered


def test_offline_engine(tmp_path: Path) -> None:
    """A batch with mixed parameters, then the same prefixes without; wrong values raise."""
    rng = random.Random("offline")
    cases = mixed(rng, 6, 30, 32)
    bodies = [
        request_body(c.prompt, c.new_tokens, c.lz, temperature=c.temperature, **c.sampling)
        for c in cases
    ]
    together = {
        "input_ids": [body["input_ids"] for body in bodies],
        "sampling_params": [body["sampling_params"] for body in bodies],
        **{key: value for key, value in bodies[0].items() if key.startswith(("return_", "top_"))},
    }
    wrong = {"input_ids": [5], "sampling_params": {"lz_penalty": -1}}
    answers, error = run_engine([together, wrong], tmp_path)
    assert "lz_penalty" in error["error"]
    assert "-1" in error["error"]
    samples = [to_sample(c.prompt, answer) for c, answer in zip(cases, answers, strict=True)]

    plain = []
    for sample in samples:
        body = request_body([*sample.prompt, *sample.outputs], 1, OFF)
        plain.append(
            {
                **body,
                "logprob_start_len": len(sample.prompt) - 1,
                "return_flat_raw_top_logprobs": True,
            }
        )
    for c, sample, base in zip(cases, samples, run_engine(plain, tmp_path), strict=True):
        rows = flat_rows(base["meta_info"], "input")
        found = deviations(sample, rows, c.lz, temperature=c.temperature, transform=c.transform)
        SUMMARY.record("offline engine", found)
        assert max(found) < TOLERANCE, (c, found)
        assert np.isfinite(found).all()
