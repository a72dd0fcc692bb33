"""Measure whether frequency and presence penalty are what they say, on our server and on stock's.

    python -m bench.exactness --server ours=http://127.0.0.1:30000 \
        --server stock=http://127.0.0.1:30001 --out bench/results/exactness.json

The same greedy requests go to each server, all at once, so that prefills fall between decodes. Of
every sampled position the whole vocabulary's logprobs must be those without a penalty (from one
prefill of prompt and outputs on the same server), less frequency_penalty times the count of each
token in the outputs before it and presence_penalty for each that stands there, normalised again. A
request is wrong if a logprob of a position is off by more than the tolerance, which is ten times
what prefill and decode differ by here without any penalty.

Then the same prompts are answered at more length and without logprobs. An answer loops if it ends
in some unit of tokens at least 20 times in a row. If the server speculates, the accept length of
these answers is the tokens of a verify step, the sampled one included.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoConfig

from bench.common import provenance, versions, write_result
from bench.http_client import request
from bench.repetition.detector import DEGENERATE_REPEATS, longest_repetition

Rows = npt.NDArray[np.float64]

PENALTIES: tuple[dict[str, float], ...] = (
    {},
    {"frequency_penalty": 0.5},
    {"presence_penalty": 0.5},
    {"frequency_penalty": 0.3, "presence_penalty": -0.2},
)
REQUESTS = 20
NEW_TOKENS = 48
LONG_TOKENS = 512
TOLERANCE = 2e-4


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.exactness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--server", action="append", required=True, metavar="NAME=URL", help="one to look at"
    )
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the rows)")
    arguments = parser.parse_args()
    rows = []
    facts = {}
    for server in arguments.server:
        name, _, url = server.partition("=")
        info = request(f"{url}/get_server_info")
        facts[name] = {
            key: info.get(key)
            for key in (
                *("version", "model_path", "disable_overlap_schedule"),
                *("speculative_algorithm", "speculative_num_draft_tokens"),
            )
        }
        vocab_size = vocab(url)
        for penalty in PENALTIES:
            rows.append({"server": name, "penalty": penalty, **look(url, penalty, vocab_size)})
            print(*rows[-1].values(), sep="\t")
    result = {
        "measures": (
            "requests with a wrong logprob at some sampled position, and the largest error; of "
            "longer answers to the same prompts, those that end in a loop, and the accept length"
        ),
        **provenance("bench.exactness"),
        **versions("torch"),
        "servers": facts,
        "requests": REQUESTS,
        "new_tokens": NEW_TOKENS,
        "long_tokens": LONG_TOKENS,
        "tolerance": TOLERANCE,
        "rows": rows,
    }
    if arguments.out:
        write_result(arguments.out, result)


def vocab(url: str) -> int:
    """The width of a server's logits, by its model's configuration."""
    path = request(f"{url}/get_model_info")["model_path"]
    return int(AutoConfig.from_pretrained(path).vocab_size)


def look(url: str, penalty: dict[str, float], vocab_size: int) -> dict[str, Any]:
    """Send the requests with a penalty; return how many are wrong, and by how much at most."""
    generator = random.Random(0)
    prompts = [
        [generator.randrange(3, vocab_size) for _ in range(8 + 2 * i)] for i in range(REQUESTS)
    ]
    sampling = {"max_new_tokens": LONG_TOKENS, "temperature": 0, "ignore_eos": True, **penalty}
    with ThreadPoolExecutor(REQUESTS) as pool:
        errors = list(pool.map(lambda prompt: error(url, prompt, penalty, vocab_size), prompts))
        bodies = [{"input_ids": prompt, "sampling_params": sampling} for prompt in prompts]
        answers = list(pool.map(lambda body: request(f"{url}/generate", body), bodies))
    steps = sum(answer["meta_info"].get("spec_verify_ct", 0) for answer in answers)
    return {
        "wrong": sum(off > TOLERANCE for off in errors),
        "requests": REQUESTS,
        "largest": float(f"{max(errors):.3g}"),
        "loops": sum(ends_in_loop(answer["output_ids"]) for answer in answers),
        "accept_length": round(REQUESTS * LONG_TOKENS / steps, 2) if steps else None,
    }


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Whether the newest copy of the longest repetition is the end of an answer."""
    found = longest_repetition(tokens)
    end = found.start + found.period * found.repeats
    return found.repeats >= DEGENERATE_REPEATS and len(tokens) - end < found.period


def error(url: str, prompt: list[int], penalty: dict[str, float], vocab_size: int) -> float:
    """The largest error of one request, in nats."""
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = generate(url, prompt, sampling | penalty, vocab_size)
    outputs = answer["output_ids"]
    rows = top(answer["meta_info"]["output_top_logprobs"], vocab_size)
    plain = generate(
        url,
        [*prompt, *outputs],
        sampling | {"max_new_tokens": 1},
        vocab_size,
        logprob_start_len=len(prompt) - 1,
    )
    base = top(plain["meta_info"]["input_top_logprobs"], vocab_size)
    worst = 0.0
    for i, (row, unpenalised) in enumerate(zip(rows, base, strict=True)):
        expected = unpenalised.copy()
        for token, count in Counter(outputs[:i]).items():
            expected[token] -= penalty.get("frequency_penalty", 0) * count
            expected[token] -= penalty.get("presence_penalty", 0)
        expected -= np.logaddexp.reduce(expected)
        worst = max(worst, float(np.abs(row - expected).max()))
    return worst


def generate(
    url: str, ids: Sequence[int], sampling: dict[str, Any], vocab_size: int, **more: Any
) -> Any:
    """The answer of /generate with the logprobs of the whole vocabulary."""
    body = {
        "input_ids": list(ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "top_logprobs_num": vocab_size,
        **more,
    }
    return request(f"{url}/generate", body)


def top(positions: Sequence[Any], vocab_size: int) -> Rows:
    """Logprobs as float64 [positions, V]."""
    positions = [entries for entries in positions if entries is not None]
    rows = np.full((len(positions), vocab_size), np.nan)
    for row, entries in zip(rows, positions, strict=True):
        for logprob, token, _ in entries:
            row[token] = logprob
    if np.isnan(rows).any():
        raise SystemExit("some token's logprob is missing")
    return rows


if __name__ == "__main__":
    main()
