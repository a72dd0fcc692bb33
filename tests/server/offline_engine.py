"""Run the offline Engine on requests read from standard input and write its answers to a file.

usage: offline_engine.py ANSWERS.json < REQUESTS.json
REQUESTS: {"engine": arguments of sglang.Engine, "requests": a list of arguments of generate}.
ANSWERS: for each request its answer, or {"error": the exception's text}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Read, run, write."""
    import sglang

    job = json.load(sys.stdin)
    engine = sglang.Engine(**job["engine"])
    answers: list[Any] = []
    try:
        for request in job["requests"]:
            try:
                answers.append(engine.generate(**request))
            except ValueError as error:
                answers.append({"error": str(error)})
    finally:
        engine.shutdown()
    Path(sys.argv[1]).write_text(json.dumps(answers))


if __name__ == "__main__":  # the engine spawns processes that import this file
    main()
