"""Measure how often greedy output falls into a loop, with and without a server's penalties.

Every prompt of `prompts.txt` is sent as one chat message, at temperature 0 and past the end of the
answer (`ignore_eos`), once for each variant. An output is degenerate if some unit of its token ids
stands at least 20 times in a row (`loops.detector`, the paper's detector). Needs a
running server and this Python's own library only:

    scripts/serve &
    python bench/repetition.py --out bench/results/repetition.json

What it does not say: whether the text is any good, or what another model does. A unit of more than
25 tokens cannot stand 20 times in 512, so slow loops go unseen at the paper's threshold; the lower
thresholds in the result show some of them. The prompts were written by hand, not drawn from a
population, so the shares carry no error bars.
"""

import argparse
import hashlib
import json
import shlex
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import ROOT, compact_rows, machine, versions
from loops.detector import DEGENERATE_REPEATS, Repetition, longest_repetition

PROMPTS = ROOT / "bench" / "prompts.txt"
VARIANTS: dict[str, dict[str, object]] = {
    "no penalty": {},
    "lz_penalty 0.15, marginal": {"lz_penalty": 0.15, "lz_cost": "marginal"},
    "lz_penalty 0.15, rate": {"lz_penalty": 0.15, "lz_cost": "rate"},
    "lz_penalty 0.3, rate": {"lz_penalty": 0.3, "lz_cost": "rate"},
    "repetition_penalty 1.2": {"repetition_penalty": 1.2},
    "frequency_penalty 0.5": {"frequency_penalty": 0.5},
}
# The paper's threshold, then lower ones that also see loops of a longer unit.
THRESHOLDS = (DEGENERATE_REPEATS, 10, 5)
TIMEOUT_SECONDS = 600.0


def request(url: str, body: dict[str, object] | None = None) -> Any:
    """Return the JSON answer to a GET, or to a POST if there is a body."""
    message = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(message, timeout=TIMEOUT_SECONDS) as answer:
        return json.load(answer)


def complete(
    base_url: str, prompt: str, max_tokens: int, penalty: dict[str, object]
) -> tuple[list[int], str]:
    """Return the token ids and the text of one greedy answer of exactly `max_tokens` tokens."""
    answer = request(
        f"{base_url}/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            **penalty,
        },
    )
    choice = answer["choices"][0]
    tokens: list[int] = choice["response_token_ids"]
    if len(tokens) != max_tokens:
        raise RuntimeError(
            f"{prompt!r}: {len(tokens)} tokens came back, {max_tokens} were asked for"
        )
    return tokens, choice["message"]["content"]


def run_variant(
    base_url: str, prompts: list[str], max_tokens: int, concurrency: int, penalty: dict[str, object]
) -> dict[str, object]:
    """Send every prompt under one penalty; return the counts and one row a prompt."""

    def one(prompt: str) -> tuple[Repetition, str]:
        tokens, text = complete(base_url, prompt, max_tokens, penalty)
        return longest_repetition(tokens), hashlib.sha256(text.encode()).hexdigest()[:12]

    with ThreadPoolExecutor(concurrency) as pool:
        rows = list(pool.map(one, prompts))
    repeats = sorted(repetition.repeats for repetition, _ in rows)
    return {
        "request": penalty,
        "degenerate_share": round(share(repeats, DEGENERATE_REPEATS), 4),
        "outputs_with_at_least": {n: sum(count >= n for count in repeats) for n in THRESHOLDS},
        "median_longest_repetition": repeats[len(repeats) // 2],
        "rows": [[row.repeats, row.period, row.start, text] for row, text in rows],
    }


def share(repeats: list[int], threshold: int) -> float:
    """Return the share of outputs, in [0, 1], whose longest repetition reaches the threshold."""
    return sum(count >= threshold for count in repeats) / len(repeats)


def environment(base_url: str) -> dict[str, Any]:
    """Say where and with what the numbers were measured."""
    server = request(f"{base_url}/server_info")
    weights = Path(server["model_path"]) / "model.safetensors"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **machine(),
        "sglang": server["version"],
        **versions("torch"),
        "model": f"{weights.parent.parent.name}/{weights.parent.name}",
        "model_sha256": _sha256(weights) if weights.is_file() else None,
        "server": {
            name: server.get(name)
            for name in (
                "device",
                "dtype",
                "tp_size",
                "attention_backend",
                "disable_overlap_schedule",
            )
        },
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a table for a README."""
    total = len(result["prompts"])
    lines = [
        "| variant | degenerate: 20 in a row | 10 in a row | 5 in a row | median longest |",
        "|---|---|---|---|---|",
    ]
    for name, variant in result["variants"].items():
        counts = variant["outputs_with_at_least"].values()
        cells = [f"{count}/{total} ({count / total:.2f})" for count in counts]
        lines.append(
            f"| {name} | {' | '.join(cells)} | {variant['median_longest_repetition']} times |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:30000", help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, help="JSON file to write (default: print the table only)"
    )
    parser.add_argument("--max-tokens", type=int, default=512, help="default: %(default)s")
    parser.add_argument(
        "--concurrency", type=int, default=8, help="requests at a time (default: %(default)s)"
    )
    arguments = parser.parse_args()

    prompts = PROMPTS.read_text().splitlines()
    result: dict[str, Any] = {
        "measures": (
            "share of greedy outputs with a degenerate repetition: some unit of token ids at least "
            f"{DEGENERATE_REPEATS} times in a row"
        ),
        "command": shlex.join(["python", *sys.argv]),
        **environment(arguments.base_url),
        "settings": {
            "temperature": 0,
            "max_tokens": arguments.max_tokens,
            "ignore_eos": True,
            "concurrency": arguments.concurrency,
            "endpoint": "/v1/chat/completions",
        },
        "row_columns": [
            "repeats",
            "period in tokens",
            "start in tokens",
            "sha256 of the text, cut",
        ],
        "prompts": prompts,
        "variants": {},
    }
    for name, penalty in VARIANTS.items():
        print(f"{name}: {len(prompts)} prompts", file=sys.stderr, flush=True)
        result["variants"][name] = run_variant(
            arguments.base_url, prompts, arguments.max_tokens, arguments.concurrency, penalty
        )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(compact_rows(json.dumps(result, indent=1)))
    print(markdown(result))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
