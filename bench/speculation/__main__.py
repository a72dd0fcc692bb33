"""Measure what the LZ penalty costs speculative decoding: accepted drafts, in loops and outside.

Every prompt is answered greedily, once for each variant, by a server that speculates. A verify step
yields the draft tokens that it accepts and one more; their mean is the accept length. A loop is a
degenerate repetition (`bench.repetition.detector`: a unit at least 20 times in a row). An answer
with a loop is asked for again up to where the loop starts, which gives the steps outside the loop.
Where the penalty has an onset, the answer up to it is held against the one without a penalty:
tokens, verify steps and how many of them accepted how many drafts must be the same. Requests go one
at a time and the cache is flushed before each, so that an n-gram drafter knows only the request
itself. Needs a running server:

    scripts/serve --speculative-algorithm NGRAM --speculative-num-draft-tokens 8 &
    python -m bench.speculation --out bench/results/speculation-ngram.json
    python -m bench.speculation --plot bench/results/speculation-ngram.png \\
        bench/results/speculation-ngram.json       # needs matplotlib

With `--task pocket` the prompts are the puzzles, answered to their ends; the server then needs
`--model-path python/sglang_lz/demo/reasoner`.

What it does not say: how much time speculation saves, which depends on the model and the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import ROOT, command, environment, write_result
from bench.http_client import request
from bench.repetition.detector import DEGENERATE_REPEATS, longest_repetition
from bench.speculation.steps import Answer, ask, onset_reached, same_until
from bench.speculation.tables import markdown

ALPHA = 0.15
NO_PENALTY = "no penalty"


@dataclass(frozen=True)
class Task:
    """What is asked, and under which penalties.

    Attributes:
        prompts: JSON lines with `prompt`.
        max_tokens: the longest answer.
        ignore_eos: whether an answer goes on past its end.
        variants: request fields by name; the first has no penalty.
    """

    prompts: Path
    max_tokens: int
    ignore_eos: bool
    variants: dict[str, dict[str, object]]


def _onset(onset: int) -> dict[str, dict[str, object]]:
    return {f"lz_penalty {ALPHA}, onset {onset}": {"lz_penalty": ALPHA, "lz_onset": onset}}


ALWAYS: dict[str, dict[str, object]] = {
    NO_PENALTY: {},
    f"lz_penalty {ALPHA}, marginal": {"lz_penalty": ALPHA, "lz_cost": "marginal"},
}
RATE: dict[str, object] = {"lz_penalty": ALPHA, "lz_cost": "rate"}
TASKS = {
    "demo": Task(
        ROOT / "bench" / "repetition" / "prompts.jsonl",
        512,
        True,
        {**ALWAYS, f"lz_penalty {ALPHA}, rate": RATE, **_onset(2)},
    ),
    "pocket": Task(
        ROOT / "bench" / "repetition" / "pocket.jsonl",
        640,
        False,
        {**ALWAYS, **_onset(2)},
    ),
}
SERVER_SETTINGS = (
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_draft_model_path",
)
ROW_COLUMNS = (
    "repeats",
    "tokens outside a loop",
    "verify steps outside",
    "tokens from its start on",
    "verify steps from its start on",
)
ONSET_COLUMNS = ("tokens until the onset", "verify steps until", "tokens after", "steps after")


class Asking:
    """The answers of one server to the prompts of a task, each asked for once.

    Attributes:
        prompts: token ids of each prompt.
    """

    def __init__(self, base_url: str, task: Task, prompts: list[str]) -> None:
        """Tokenize the prompts as the chat template renders them."""
        self._base_url, self._task = base_url, task
        self._known: dict[tuple[int, str, int], Answer] = {}
        url = f"{base_url}/tokenize"
        self.prompts: list[list[int]] = [
            request(
                url,
                {"messages": [{"role": "user", "content": prompt}], "add_generation_prompt": True},
            )["tokens"]
            for prompt in prompts
        ]

    def answer(self, prompt: int, variant: str, max_tokens: int | None = None) -> Answer:
        """The answer to the prompt of this number under a variant, or its first tokens."""
        limit = max_tokens or self._task.max_tokens
        key = (prompt, variant, limit)
        if key not in self._known:
            sampling = {"max_new_tokens": limit, "ignore_eos": self._task.ignore_eos}
            self._known[key] = ask(
                self._base_url, self.prompts[prompt], sampling | self._task.variants[variant]
            )
        return self._known[key]


def measure(asking: Asking, prompt: int, variant: str) -> list[int]:
    """Return one row for a prompt: `ROW_COLUMNS`."""
    answer = asking.answer(prompt, variant)
    count, steps = len(answer.tokens), answer.steps
    found = longest_repetition(answer.tokens)
    if found.repeats < DEGENERATE_REPEATS:
        return [found.repeats, count, steps, 0, 0]
    before, steps_before = 0, 0
    if found.start:
        before = found.start
        again = asking.answer(prompt, variant, before)
        steps_before = again.steps
        if again.tokens != answer.tokens[:before]:
            raise RuntimeError(f"prompt {prompt}: the same request gave another answer")
    return [found.repeats, before, steps_before, count - before, steps - steps_before]


def until_onset(asking: Asking, variant: str, onset: int) -> dict[str, Any]:
    """Hold the answers up to the onset against those without a penalty.

    Raises:
        RuntimeError: an answer differs in a token or a verify step before its onset.
    """
    rows = []
    for prompt in range(len(asking.prompts)):
        whole = asking.answer(prompt, variant)
        reached = onset_reached(whole.tokens, onset)
        limit = None if reached in (None, len(whole.tokens)) else reached
        pair = [asking.answer(prompt, name, limit) for name in (NO_PENALTY, variant)]
        if not same_until(*pair, onset_reached=limit is not None):
            raise RuntimeError(f"prompt {prompt}: {variant} differs before its onset")
        tokens = len(pair[1].tokens)
        rows.append(
            [tokens, pair[1].steps, len(whole.tokens) - tokens, whole.steps - pair[1].steps]
        )
    tokens, steps, tokens_after, steps_after = map(sum, zip(*rows, strict=True))
    return {
        "equal_outputs": len(rows),
        "equal_tokens": tokens,
        "equal_verify_steps": steps,
        "accept_length_before": _mean(tokens, steps),
        "accept_length_after": _mean(tokens_after, steps_after),
        "columns": ONSET_COLUMNS,
        "rows": rows,
    }


def run_variant(asking: Asking, variant: str, penalty: dict[str, object]) -> dict[str, Any]:
    """Answer every prompt under one penalty; return the means and one row a prompt."""
    rows = [measure(asking, prompt, variant) for prompt in range(len(asking.prompts))]
    _, outside_tokens, outside_steps, inside_tokens, inside_steps = map(
        sum, zip(*rows, strict=True)
    )
    degenerate = sum(row[0] >= DEGENERATE_REPEATS for row in rows)
    onset = penalty.get("lz_onset")
    return {
        "request": penalty,
        "degenerate_share": round(degenerate / len(rows), 4),
        "tokens_inside_share": round(inside_tokens / (inside_tokens + outside_tokens), 4),
        "accept_length": _mean(inside_tokens + outside_tokens, inside_steps + outside_steps),
        "accept_length_outside": _mean(outside_tokens, outside_steps),
        "accept_length_inside": _mean(inside_tokens, inside_steps),
        **({"until_onset": until_onset(asking, variant, onset)} if isinstance(onset, int) else {}),
        "rows": rows,
    }


def plot(result: dict[str, Any], out: Path) -> None:
    """Draw the accept lengths and the degenerate shares of a result file."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = list(result["variants"])
    variants = list(result["variants"].values())
    figure, (left, right) = plt.subplots(
        1,
        2,
        figsize=(9, 1 + 0.6 * len(names)),
        width_ratios=(3, 2),
        constrained_layout=True,
        sharey=True,
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


def measured(base_url: str, name: str, limit: int | None, info: dict[str, Any]) -> dict[str, Any]:
    """Measure every variant of a task on a server; return the result file.

    Args:
        base_url: the server's address.
        name: of the task.
        limit: how many prompts to answer; None for all.
        info: what the server answers at /server_info.
    """
    task = TASKS[name]
    lines = task.prompts.read_text().splitlines()[:limit]
    where = environment(info)
    where["server"] |= {setting: info.get(setting) for setting in SERVER_SETTINGS}
    asking = Asking(base_url, task, [json.loads(line)["prompt"] for line in lines])
    variants = {}
    for variant, penalty in task.variants.items():
        print(f"{variant}: {len(lines)} prompts", file=sys.stderr, flush=True)
        variants[variant] = run_variant(asking, variant, penalty)
    return {
        "measures": (
            "accept length (tokens of a verify step, the sampled one included) and share of greedy "
            f"outputs with some unit of token ids at least {DEGENERATE_REPEATS} times in a row; "
            "until_onset: answers with an onset, equal up to it to those without a penalty in "
            "tokens, verify steps and how many steps accepted how many drafts"
        ),
        "command": command("bench.speculation"),
        **where,
        "settings": {
            "temperature": 0,
            "prompts": len(lines),
            "max_tokens": task.max_tokens,
            "ignore_eos": task.ignore_eos,
            "concurrency": 1,
            "endpoint": "/generate, cache flushed before each request",
        },
        "row_columns": ROW_COLUMNS,
        "variants": variants,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:30000", help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the table)")
    parser.add_argument("--task", choices=TASKS, default="demo", help="default: %(default)s")
    parser.add_argument("--limit", type=int, help="prompts to answer (default: all)")
    parser.add_argument("--plot", type=Path, help="draw a result file here and measure nothing")
    parser.add_argument("result", type=Path, nargs="?", help="the result file to draw")
    arguments = parser.parse_args()
    if (arguments.plot is None) != (arguments.result is None):
        parser.error("--plot and a result file go together")
    if arguments.plot:
        plot(json.loads(arguments.result.read_text()), arguments.plot)
        return

    info = request(f"{arguments.base_url}/server_info")
    if info["speculative_algorithm"] is None:
        parser.error(f"the server at {arguments.base_url} does not speculate")
    result = measured(arguments.base_url, arguments.task, arguments.limit, info)
    if arguments.out:
        write_result(arguments.out, result)
    print(markdown(result))


def _mean(tokens: int, steps: int) -> float | None:
    return round(tokens / steps, 3) if steps else None


if __name__ == "__main__":
    main()
