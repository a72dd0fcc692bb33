"""Measure what the LZ penalty costs speculative decoding: accepted drafts, in loops and outside.

Every prompt of `bench/repetition/prompts.jsonl` is answered greedily, past the end of the answer,
once for each variant, by a server that speculates. A verify step yields the draft tokens that it
accepts and one more; their mean is the accept length. A loop is a degenerate repetition
(`bench.repetition.detector`: a unit at least 20 times in a row). An answer with a loop is asked for
again up to where the loop starts, which gives the steps outside the loop. Requests go one at a time
and the cache is flushed before each, so that an n-gram drafter knows only the request itself. Needs
a running server:

    scripts/serve --speculative-algorithm NGRAM --speculative-num-draft-tokens 8 &
    python -m bench.speculation --out bench/results/speculation-ngram.json
    python -m bench.speculation --plot bench/results/speculation-ngram.png \\
        bench/results/speculation-ngram.json       # needs matplotlib

What it does not say: how much time speculation saves, which depends on the model and the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from bench.common import TIMEOUT_SECONDS, command, environment, request, write_result
from bench.repetition.detector import DEGENERATE_REPEATS, longest_repetition

PROMPTS = Path(__file__).resolve().parents[1] / "repetition" / "prompts.jsonl"

VARIANTS: dict[str, dict[str, object]] = {
    "no penalty": {},
    "lz_penalty 0.15, marginal": {"lz_penalty": 0.15, "lz_cost": "marginal"},
    "lz_penalty 0.15, rate": {"lz_penalty": 0.15, "lz_cost": "rate"},
    "lz_penalty 0.3, rate": {"lz_penalty": 0.3, "lz_cost": "rate"},
}
SERVER_SETTINGS = (
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_draft_model_path",
)


def answer(
    base_url: str, prompt: list[int], max_tokens: int, penalty: dict[str, object]
) -> tuple[list[int], int]:
    """Return the token ids of a greedy answer and in how many verify steps they came."""
    flush = f"{base_url}/flush_cache?timeout=30"
    urllib.request.urlopen(flush, timeout=TIMEOUT_SECONDS).close()
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True, **penalty}
    found = request(f"{base_url}/generate", {"input_ids": prompt, "sampling_params": sampling})
    tokens: list[int] = found["output_ids"]
    if len(tokens) != max_tokens:
        raise RuntimeError(f"{len(tokens)} tokens came back, {max_tokens} were asked for")
    return tokens, found["meta_info"].get("spec_verify_ct", 0)


def measure(base_url: str, prompt: str, max_tokens: int, penalty: dict[str, object]) -> list[int]:
    """Return one row for a prompt: `ROW_COLUMNS`."""
    messages = [{"role": "user", "content": prompt}]
    rendered = request(
        f"{base_url}/tokenize", {"messages": messages, "add_generation_prompt": True}
    )
    ids = rendered["tokens"]
    tokens, steps = answer(base_url, ids, max_tokens, penalty)
    found = longest_repetition(tokens)
    if found.repeats < DEGENERATE_REPEATS:
        return [found.repeats, max_tokens, steps, 0, 0]
    before, steps_before = 0, 0
    if found.start:
        before = found.start
        again, steps_before = answer(base_url, ids, before, penalty)
        if again != tokens[:before]:
            raise RuntimeError(f"{prompt!r}: the same request gave another answer")
    return [found.repeats, before, steps_before, max_tokens - before, steps - steps_before]


ROW_COLUMNS = (
    "repeats",
    "tokens outside a loop",
    "verify steps outside",
    "tokens from its start on",
    "verify steps from its start on",
)


def run_variant(
    base_url: str, prompts: list[str], max_tokens: int, penalty: dict[str, object]
) -> dict[str, Any]:
    """Answer every prompt under one penalty; return the means and one row a prompt."""
    rows = [measure(base_url, prompt, max_tokens, penalty) for prompt in prompts]
    _, outside_tokens, outside_steps, inside_tokens, inside_steps = map(
        sum, zip(*rows, strict=True)
    )
    degenerate = sum(row[0] >= DEGENERATE_REPEATS for row in rows)
    return {
        "request": penalty,
        "degenerate_share": round(degenerate / len(rows), 4),
        "tokens_inside_share": round(inside_tokens / (inside_tokens + outside_tokens), 4),
        "accept_length": _mean(inside_tokens + outside_tokens, inside_steps + outside_steps),
        "accept_length_outside": _mean(outside_tokens, outside_steps),
        "accept_length_inside": _mean(inside_tokens, inside_steps),
        "rows": rows,
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a table for a README."""
    lines = [
        "| variant | degenerate outputs | accept length | outside loops | inside loops |",
        "|---|---|---|---|---|",
    ]
    for name, variant in result["variants"].items():
        inside = variant["accept_length_inside"]
        cells = [
            f"{variant['degenerate_share']:.2f}",
            f"{variant['accept_length']:.2f}",
            f"{variant['accept_length_outside']:.2f}",
            "-" if inside is None else f"{inside:.2f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(result: dict[str, Any], out: Path) -> None:
    """Draw the accept lengths and the degenerate shares of a result file."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = list(result["variants"])
    variants = list(result["variants"].values())
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9, 3.2), width_ratios=(3, 2), constrained_layout=True, sharey=True
    )
    rows = range(len(names))
    bars = (
        ("inside loops", "accept_length_inside", "#c2693d"),
        ("outside loops", "accept_length_outside", "#9dbbd8"),
        ("all steps", "accept_length", "#3b6ea5"),
    )
    for i, (label, key, colour) in enumerate(bars):
        lengths = [variant[key] or 0 for variant in variants]
        drawn = left.barh(
            [row + 0.27 * (i - 1) for row in rows], lengths, 0.25, label=label, color=colour
        )
        labels = [f"{length:.2f}" if length else "no loops" for length in lengths]
        left.bar_label(drawn, labels, padding=2, fontsize=8)
    left.set_yticks(rows, names)
    left.invert_yaxis()
    left.margins(x=0.12)
    left.set_xlabel("accept length, tokens a verify step")
    left.legend(loc="lower right", fontsize=8, frameon=False)
    shares = [variant["degenerate_share"] for variant in variants]
    drawn = right.barh(rows, shares, 0.79, color="#c2693d")
    right.bar_label(drawn, fmt="%.2f", padding=2, fontsize=8)
    right.set_xlim(0, 1.12)
    right.set_xlabel("share of outputs with a loop")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    algorithm = result["server"]["speculative_algorithm"]
    drafts = result["server"]["speculative_num_draft_tokens"]
    figure.suptitle(f"{algorithm}, {drafts} draft tokens, greedy, demo model", fontsize=10)
    figure.savefig(out, dpi=160)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:30000", help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the table)")
    parser.add_argument("--max-tokens", type=int, default=512, help="default: %(default)s")
    parser.add_argument("--plot", type=Path, help="draw a result file here and measure nothing")
    parser.add_argument("result", type=Path, nargs="?", help="the result file to draw")
    arguments = parser.parse_args()
    if (arguments.plot is None) != (arguments.result is None):
        parser.error("--plot and a result file go together")
    if arguments.plot:
        plot(json.loads(arguments.result.read_text()), arguments.plot)
        return

    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    info = request(f"{arguments.base_url}/server_info")
    where = environment(info)
    if info["speculative_algorithm"] is None:
        parser.error(f"the server at {arguments.base_url} does not speculate")
    where["server"] |= {name: info.get(name) for name in SERVER_SETTINGS}
    result: dict[str, Any] = {
        "measures": (
            "accept length (tokens of a verify step, the sampled one included) and share of greedy "
            f"outputs with some unit of token ids at least {DEGENERATE_REPEATS} times in a row"
        ),
        "command": command("speculation"),
        **where,
        "settings": {
            "temperature": 0,
            "max_tokens": arguments.max_tokens,
            "ignore_eos": True,
            "concurrency": 1,
            "endpoint": "/generate, cache flushed before each request",
        },
        "row_columns": ROW_COLUMNS,
        "variants": {},
    }
    for name, penalty in VARIANTS.items():
        print(f"{name}: {len(prompts)} prompts", file=sys.stderr, flush=True)
        result["variants"][name] = run_variant(
            arguments.base_url, prompts, arguments.max_tokens, penalty
        )
    if arguments.out:
        write_result(arguments.out, result)
    print(markdown(result))


def _mean(tokens: int, steps: int) -> float | None:
    return round(tokens / steps, 3) if steps else None


if __name__ == "__main__":
    main()
