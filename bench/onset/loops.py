"""What a setting of the constants does to a model that loops: `python -m bench.onset loops`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.onset import rule
from bench.onset.generation import ATTENTION, Limits, Row, generate
from bench.onset.settings import NO_PENALTY, SETTINGS, SPEC
from bench.repetition import answers
from bench.repetition.detector import DEGENERATE_REPEATS, longest_repetition
from bench.repetition.items import Item
from bench.repetition.scores import compression_ratio, rep_n_gram


@dataclass(frozen=True)
class Task:
    """A model and what it is asked.

    Attributes:
        folder: where the model is.
        items: the prompts.
        tokens: the most tokens of an output.
        chat: whether prompts go through the chat template; else they are continued.
        ends: whether an output ends at the end-of-text token; else it goes on past it.
    """

    folder: Path
    items: list[Item]
    tokens: int
    chat: bool
    ends: bool


def measure(task: Task, temperature: float, names: Sequence[str]) -> list[dict[str, Any]]:
    """Generate every item under every setting of these names; return a row for each of them."""
    tokenizer: Any = AutoTokenizer.from_pretrained(task.folder)
    model = AutoModelForCausalLM.from_pretrained(
        task.folder, dtype=torch.float32, attn_implementation=ATTENTION
    ).eval()
    prompts = [_encode(tokenizer, item.prompt, task.chat) for item in task.items]
    limits = Limits(task.tokens, tokenizer.eos_token_id if task.ends else None, temperature)
    plain = generate(
        model, prompts, [Row(i, [], NO_PENALTY) for i in range(len(prompts))], limits, "none"
    )
    outputs = {name: list(plain) for name in names}
    rows, places = [], []
    for name in names:
        setting = SETTINGS[name]
        for item, output in enumerate(plain):
            reached = rule.first_loop(
                np.array(output, np.int32), rule.table([setting])[0], rule.new_state(1)[0]
            )
            if reached >= 0 and setting.alpha:
                rows.append(Row(item, output[:reached], setting))
                places.append((name, item))
    found = generate(model, prompts, rows, limits, f"{len(names)} settings")
    for (name, item), output in zip(places, found, strict=True):
        outputs[name][item] = output
    scores = {name: _Scores.of(task.items, outputs[name], plain, tokenizer) for name in names}
    return [{"setting": name, **scores[name].row(scores.get(SPEC))} for name in names]


@dataclass(frozen=True)
class _Scores:
    """What a setting's outputs are, an entry for each item.

    Attributes:
        copies: the most copies of anything in a row.
        grams: distinct 4-grams, a share.
        sizes: bytes of the compressed text for each byte.
        right: whether the answer is right; None where there is none.
        loops: how many loops there are, by SPEC's definition with an onset of 3.
        gaps: tokens from the end of each loop but an output's last one to the next.
        unchanged: whether it is the output without a penalty.
    """

    copies: list[int]
    grams: list[float]
    sizes: list[float]
    right: list[bool | None]
    loops: list[int]
    gaps: list[int]
    unchanged: list[bool]

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        outputs: Sequence[list[int]],
        plain: Sequence[list[int]],
        tokenizer: Any,
    ) -> _Scores:
        texts = [tokenizer.decode(output) for output in outputs]
        row = rule.table([SETTINGS[SPEC]])[0]
        found = [
            rule.loops(np.array(output, np.int32), row, rule.new_state(1)[0]) for output in outputs
        ]
        return cls(
            copies=[longest_repetition(output).repeats for output in outputs],
            grams=[1 - (rep_n_gram(output, 4) or 0) for output in outputs],
            sizes=[compression_ratio(text) or 1 for text in texts],
            right=[answers.correct(item, text) for item, text in zip(items, texts, strict=True)],
            loops=[len(loops) for loops in found],
            gaps=[
                after[0] - before[1]
                for loops in found
                for before, after in itertools.pairwise(loops)
            ],
            unchanged=[x == y for x, y in zip(outputs, plain, strict=True)],
        )

    def row(self, spec: _Scores | None) -> dict[str, Any]:
        """The means; beside each, as `[mean, SE]`, its difference from SPEC's setting, paired."""
        degenerate = [copies >= DEGENERATE_REPEATS for copies in self.copies]
        right = [] if None in self.right else [float(bool(one)) for one in self.right]
        found: dict[str, Any] = {
            "degenerate": _mean(degenerate),
            "most_copies": max(self.copies),
            "distinct_4_grams": _mean(self.grams),
            "compressed": _mean(self.sizes),
            "right": _mean(right) if right else None,
            "unchanged": _mean(self.unchanged),
            "loops": _mean(self.loops),
            "gap": int(np.median(self.gaps)) if self.gaps else None,
        }
        if spec is not None:
            found["than_spec"] = {
                "distinct_4_grams": _paired(self.grams, spec.grams),
                "compressed": _paired(self.sizes, spec.sizes),
                "loops": _paired(self.loops, spec.loops),
                "right": _paired(right, [float(bool(one)) for one in spec.right])
                if right
                else None,
            }
        return found


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def _paired(values: Sequence[float], others: Sequence[float]) -> list[float]:
    difference = np.subtract(values, others)
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return [_mean(difference.tolist()), round(float(error), 4)]


def read_prompts(path: Path) -> list[Item]:
    """The prompts of a file of JSON lines that need no grammar."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Item(str(i), line["prompt"], None, line.get("group", ""))
        for i, line in enumerate(lines)
        if line.get("fields", {"ignore_eos": True}) == {"ignore_eos": True}
    ]


def _encode(tokenizer: Any, prompt: str, chat: bool) -> list[int]:
    if chat:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(prompt)["input_ids"])
