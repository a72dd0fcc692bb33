"""Measure whether it matters that a source may overlap the buffer (docs/SPEC.md, sections 1, 2).

Equation (2) of the paper, read literally, keeps the newest B tokens out of the window. LZ77 lets a
source reach into them, and so does the server, which has no switch for it. Therefore this generates
without a server, greedily, with transformers and the penalty of `sglang_lz.reference.codelength`,
both ways:

    python -m bench.overlap --out bench/results/overlap.json

It takes the pocket reasoner on its held-out puzzles, which end by themselves, and the demo model on
`bench/repetition/prompts.jsonl`, past the end of the answer.
"""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

from bench import common
from bench.repetition import answers, tasks
from bench.repetition.detector import DEGENERATE_REPEATS, longest_repetition
from bench.repetition.items import Item
from bench.repetition.scores import bootstrap
from sglang_lz.reference.codelength import match_lengths, saved_bits, subtract_savings

WINDOW, BUFFER = 512, 32


@dataclass(frozen=True)
class Variant:
    """`overlap` is whether a source may reach into the newest BUFFER tokens."""

    alpha: float
    cost: str
    overlap: bool


VARIANTS = [
    Variant(0.0, "marginal", True),
    *(Variant(0.15, cost, overlap) for cost in ("marginal", "rate") for overlap in (True, False)),
]


class Penalty(LogitsProcessor):  # type: ignore[misc]
    """The LZ penalty on the tokens after the prompt, as the server's default computes it."""

    def __init__(self, variant: Variant, prompt_width: int) -> None:
        self.variant, self.prompt_width = variant, prompt_width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Lower `scores` (rows, V) by what `input_ids` (rows, length) predict, in place."""
        window = input_ids[:, self.prompt_width :][:, -WINDOW:].flip(1)
        rows, width = window.shape
        if width == 0:
            return scores
        length = torch.full((rows,), width)
        match = match_lengths(window, length, torch.full((rows,), BUFFER))
        if not self.variant.overlap:
            match[:, :BUFFER] = 0
        is_rate = torch.full((rows,), self.variant.cost == "rate")
        savings = saved_bits(match, length, scores.shape[1], is_rate)
        if not self.variant.overlap:
            savings[:, :BUFFER] = 0
        subtract_savings(scores, torch.arange(rows), window, self.variant.alpha * savings)
        return scores


@dataclass(frozen=True)
class Output:
    """One answer: its tokens without the padding behind the end, and its text."""

    tokens: list[int]
    text: str


def generate(
    model: Any, tokenizer: Any, prompts: list[str], variant: Variant, *, max_tokens: int, end: bool
) -> list[Output]:
    """Answer each chat prompt greedily; without `end`, past the end-of-text token."""
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in prompts
    ]
    batch = tokenizer(chats, return_tensors="pt", padding=True, padding_side="left")
    width = batch["input_ids"].shape[1]
    with torch.no_grad():
        rows = model.generate(
            **batch,
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=tokenizer.eos_token_id if end else None,
            pad_token_id=tokenizer.pad_token_id,
            logits_processor=[Penalty(variant, width)] if variant.alpha else [],
        )
    found = []
    for row in rows[:, width:].tolist():
        tokens = row
        if end and tokenizer.eos_token_id in row:
            tokens = row[: row.index(tokenizer.eos_token_id)]
        found.append(Output(tokens, tokenizer.decode(tokens)))
    return found


def measure(
    name: str, items: list[Item], max_tokens: int, *, end: bool, batch_size: int
) -> dict[str, Any]:
    """Answer every item under every variant; return shares with their 95 % intervals."""
    path = common.DEMO / name
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    # Items of about one length together, since padding costs time.
    order = sorted(items, key=lambda item: (item.group, len(item.prompt)))
    rows = []
    for variant in VARIANTS:
        outputs: list[Output] = []
        label = f"{name}: {variant.cost} {variant.alpha} {'overlap' if variant.overlap else ''}"
        for start in tqdm(range(0, len(order), batch_size), desc=label):
            prompts = [item.prompt for item in order[start : start + batch_size]]
            outputs += generate(model, tokenizer, prompts, variant, max_tokens=max_tokens, end=end)
        repeats = [longest_repetition(output.tokens).repeats for output in outputs]
        graded = [
            answers.correct(item, output.text) for item, output in zip(order, outputs, strict=True)
        ]
        rows.append(
            {
                "lz_penalty": variant.alpha,
                "lz_cost": variant.cost,
                "overlap": variant.overlap,
                "degenerate": _share([count >= DEGENERATE_REPEATS for count in repeats]),
                "accuracy": None if None in graded else _share([bool(g) for g in graded]),
                "repeats": repeats,
                "tokens": [len(output.tokens) for output in outputs],
            }
        )
    return {
        "items": [item.id for item in order],
        "max_tokens": max_tokens,
        "ends_by_itself": end,
        "variants": rows,
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a table for a README."""
    lines = [
        "| model | strength | cost | source | degenerate | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in result["models"].items():
        for row in found["variants"]:
            where = "may overlap the buffer" if row["overlap"] else "before the buffer"
            cost, where = (row["lz_cost"], where) if row["lz_penalty"] else ("-", "-")
            cells = [
                "-" if share is None else "{:.3f} ({:.3f} to {:.3f})".format(*share)
                for share in (row["degenerate"], row["accuracy"])
            ]
            lines.append(
                f"| {name} | {row['lz_penalty']} | {cost} | {where} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.overlap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--limit", type=int, help="only the first items of each model")
    parser.add_argument("--batch-size", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {
        "measures": "degenerate share and accuracy of greedy outputs: share, 95 % interval",
        "command": common.command("overlap"),
        "date": common.date(),
        "commit": common.commit(),
        **common.machine(),
        **common.versions("torch", "transformers"),
        "window": WINDOW,
        "buffer": BUFFER,
    }
    size = arguments.batch_size
    puzzles, talk = (
        tasks.load(spec, arguments.limit) for spec in ("pocket", f"jsonl={tasks.PROMPTS}")
    )
    result["models"] = {
        "reasoner": measure("reasoner", puzzles, 640, end=True, batch_size=size),
        "model": measure("model", talk, 512, end=False, batch_size=size),
    }
    common.write_result(arguments.out, result)
    print(markdown(result))


def _share(hits: list[bool]) -> list[float]:
    return [round(sum(hits) / len(hits), 4), *bootstrap(np.array(hits, dtype=np.float64))]


if __name__ == "__main__":
    main()
