"""The contract through the offline Engine, in a process of its own."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from bench.processes import Background
from oracle import first_loop
from server.client import to_sample, top_rows
from server.configurations import FORKED
from server.contract import SUMMARY, TOLERANCE, deviations
from server.launch import Config, environment, model_path, vocab_size
from server.prompts import mixed

ENGINE = {
    "device": "cpu",
    "dtype": "float32",
    "max_total_tokens": 8192,
    "max_running_requests": 16,
    "log_level": "error",
}
WRONG = (
    *(("lz_penalty", value) for value in (-1, True, math.nan, math.inf)),
    ("lz_window_size", 0),
    ("lz_buffer_size", 33.0),
    ("lz_include_prompt", "yes"),
    ("lz_cost", "cheap"),
    ("lz_onset", 65),
    ("repetition_detection", 20),
)
WRONG_PROMPTS = ([5, -1], [5, vocab_size()], [5, 2**70], [[5], [5, -1]], [5, "6"])
LOOP = {"max_pattern_size": 4, "min_count": 3}
TIMEOUT_SECONDS = 600


def run_engine(job: dict[str, Any], folder: Path) -> Any:
    """What the Engine answers to a job of offline_engine.py."""
    answers = folder / "answers.json"
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, str(Path(__file__).with_name("offline_engine.py")), str(answers)]
    with (
        (folder / "job.json").open() as stdin,
        Background(
            command,
            name="the engine",
            log=folder / "engine.log",
            env=environment(Config("engine", env=FORKED)),
            cwd=folder,
            stdin=stdin,
            grace=0,
        ) as engine,
    ):
        status = engine.wait(TIMEOUT_SECONDS)
        if status != 0:
            raise engine.error(f"the engine's status is {status} after {TIMEOUT_SECONDS} s at most")
    return json.loads(answers.read_text())


def test_offline_engine(tmp_path: Path) -> None:
    """A batch with mixed parameters obeys the contract; wrong values raise."""
    rng = random.Random("offline")
    cases = mixed(rng, 6, 30, 32)
    bodies = [c.body() for c in cases]
    logprobs = {"return_logprob": True, "top_logprobs_num": vocab_size()}
    for body in bodies:
        body["sampling_params"]["repetition_detection"] = LOOP
    job = {
        "engine": {**ENGINE, "model_path": str(model_path())},
        "batch": {
            "input_ids": [body["input_ids"] for body in bodies],
            "sampling_params": [body["sampling_params"] for body in bodies],
            **logprobs,
        },
        "bare": {"sampling_params": {"max_new_tokens": 1, "temperature": 0}, **logprobs},
        "wrong": [
            *({"input_ids": [5], "sampling_params": {field: value}} for field, value in WRONG),
            *({"input_ids": prompt} for prompt in WRONG_PROMPTS),
        ],
    }
    answers = run_engine(job, tmp_path)
    stops = 0
    for c, answer, bare in zip(cases, answers["batch"], answers["bare"], strict=True):
        found = deviations(
            to_sample(c.prompt, answer),
            top_rows(bare["meta_info"], "input"),
            c.lz,
            temperature=c.temperature,
            logits_of=c.logits_of(answer["output_ids"]),
        )
        SUMMARY.record("offline engine", found)
        assert max(found) < TOLERANCE, (c, found)
        loop = first_loop(answer["output_ids"], range(1, 5), 3)
        stopped = answer["meta_info"]["finish_reason"]["type"] == "repetition"
        assert stopped == (loop is not None and loop[0] < c.new_tokens), loop
        stops += stopped
    assert stops
    for (field, value), message in zip(WRONG, answers["wrong"], strict=False):
        assert field in message
        assert repr(value) in message
    for message in answers["wrong"][len(WRONG) :]:
        assert f"input_ids must be token ids in [0, {vocab_size() - 1}]" in message
    assert len(answers["wrong"]) == len(WRONG) + len(WRONG_PROMPTS)
