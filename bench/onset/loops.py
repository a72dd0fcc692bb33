"""What a setting of the constants does to a model that loops: `python -m bench.onset loops`."""

from __future__ import annotations

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
from bench.onset.settings import NO_PENALTY, SETTINGS
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
            reached = rule.first_loop(np.array(output, np.int32), rule.table([setting])[0])
            if reached >= 0 and setting.alpha:
                rows.append(Row(item, output[:reached], setting))
                places.append((name, item))
    found = generate(model, prompts, rows, limits, f"{len(names)} settings")
    for (name, item), output in zip(places, found, strict=True):
        outputs[name][item] = output
    return [
        {"setting": name, **score(task.items, outputs[name], plain, tokenizer)} for name in names
    ]


def score(
    items: Sequence[Item],
    outputs: Sequence[list[int]],
    plain: Sequence[list[int]],
    tokenizer: Any,
) -> dict[str, Any]:
    """Say how much a setting's outputs repeat, and how far they are those without a penalty."""
    copies = [longest_repetition(output).repeats for output in outputs]
    texts = [tokenizer.decode(output) for output in outputs]
    right = [answers.correct(item, text) for item, text in zip(items, texts, strict=True)]
    changed = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
        for x, y in zip(outputs, plain, strict=True)
        if x != y
    ]
    grams = [rep_n_gram(output, 4) for output in outputs]
    sizes = [compression_ratio(text) for text in texts]
    return {
        "degenerate": round(float(np.mean([c >= DEGENERATE_REPEATS for c in copies])), 4),
        "most_copies": max(copies),
        "distinct_4_grams": round(1 - float(np.mean([g for g in grams if g is not None])), 4),
        "compressed": round(float(np.mean([s for s in sizes if s is not None])), 4),
        "accuracy": None if None in right else round(float(np.mean([bool(r) for r in right])), 4),
        "unchanged": round(1 - len(changed) / len(items), 4),
        "first_change": int(np.median(changed)) if changed else None,
    }


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
