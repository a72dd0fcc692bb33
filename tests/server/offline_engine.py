"""Run the offline Engine on a job and write what it answers.

usage: offline_engine.py ANSWERS.json < JOB.json
JOB: "engine", arguments of sglang.Engine; "batch", arguments of one generate() of several requests;
"bare", how each output is prefilled once more, behind its prompt, for the logprobs without a
penalty; "wrong", arguments of generate() calls that shall raise ValueError.
ANSWERS: "batch", "bare" and "wrong" with the answers, and the texts of the exceptions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def refusal(engine: Any, request: dict[str, Any]) -> str:
    """The text of the ValueError that the request raises; empty if it raises none."""
    try:
        engine.generate(**request)
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    """Read, run, write."""
    import sglang

    job = json.load(sys.stdin)
    engine = sglang.Engine(**job["engine"])
    try:
        batch = engine.generate(**job["batch"])
        bare = [
            engine.generate(
                input_ids=[*prompt, *answer["output_ids"]],
                logprob_start_len=len(prompt) - 1,
                **job["bare"],
            )
            for prompt, answer in zip(job["batch"]["input_ids"], batch, strict=True)
        ]
        wrong = [refusal(engine, request) for request in job["wrong"]]
    finally:
        engine.shutdown()
    Path(sys.argv[1]).write_text(json.dumps({"batch": batch, "bare": bare, "wrong": wrong}))


if __name__ == "__main__":  # processes that are not forks import this file anew
    main()
