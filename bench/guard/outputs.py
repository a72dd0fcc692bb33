"""What the guard does with models that loop: `python -m bench.guard outputs MODEL --out FILE`.

Greedy answers of a real server: none, the guard that stops, the guard that ends thinking, the LZ
penalty with an onset, and both. MODEL is `pocket` (as a model that thinks, `thinker.py`), `demo`,
or a folder, whose prompts are a JSONL file.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import common
from bench.guard import thinker
from bench.http_client import request
from bench.repetition import tasks
from bench.repetition.answers import correct
from bench.repetition.detector import final_loop
from bench.repetition.items import Item, digest
from bench.repetition.server import serving
from sglang_lz.fields.repetition import END_THINKING, RECOMMENDED

CONCURRENCY = 32
SERVER = ("--max-running-requests", "32", "--max-total-tokens", "65536")
PARSER = ("--reasoning-parser", "deepseek-r1")

STOP: dict[str, object] = {"repetition_detection": dataclasses.asdict(RECOMMENDED)}
ENDS: dict[str, object] = {
    "repetition_detection": dataclasses.asdict(
        dataclasses.replace(RECOMMENDED, action=END_THINKING)
    )
}
SOON: dict[str, object] = {
    "repetition_detection": dataclasses.asdict(
        dataclasses.replace(RECOMMENDED, min_count=4, action=END_THINKING)
    )
}
ONSET: dict[str, object] = {"lz_penalty": 0.15, "lz_onset": 3}
VARIANTS: dict[str, dict[str, object]] = {
    "none": {},
    "guard, stop": STOP,
    "lz 0.15, onset 3": ONSET,
    "lz 0.15, onset 3 + guard, stop": {**ONSET, **STOP},
}
THINKING: dict[str, dict[str, object]] = {
    "guard, end_thinking": ENDS,
    "guard of 4 copies, end_thinking": SOON,
    "lz 0.15, onset 3 + guard, end_thinking": {**ONSET, **ENDS},
}


@dataclass(frozen=True)
class Answer:
    """One answer: its tokens, why it ended, and its text with the thoughts."""

    tokens: list[int]
    finish: str
    text: str
    thinking: bool


def measure(model: str, prompts: Path | None, max_tokens: int, limit: int | None) -> dict[str, Any]:
    """Every variant's answers to all prompts, counted."""
    # So small that more threads only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    thinks = model == "pocket"
    task = {"pocket": "pocket", "demo": f"jsonl={tasks.PROMPTS}"}.get(model, f"jsonl={prompts}")
    items = tasks.load(task, limit)
    variants = VARIANTS | THINKING if thinks else VARIANTS
    answers: dict[str, list[Answer]] = {}
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        place = str(thinker.make(Path(folder) / "pocket")) if thinks else model
        arguments = (*SERVER, *PARSER) if thinks else SERVER
        with serving(place, arguments, Path(folder) / "server.log") as url:
            server = request(f"{url}/server_info")
            for name, fields in variants.items():
                ask = partial(_ask, url, max_tokens=max_tokens, fields=fields, chat=not prompts)
                with ThreadPoolExecutor(CONCURRENCY) as pool:
                    answers[name] = list(pool.map(ask, items))
    return {
        "measures": "greedy answers by variant: how they end, right ones, tokens",
        "model": Path(model).name,
        "items": len(items),
        "items_sha256": digest(items),
        "max_tokens": max_tokens,
        "environment": common.environment(server),
        "recommended": dataclasses.asdict(RECOMMENDED),
        "variants": {
            name: _counted(items, found, answers["none"]) for name, found in answers.items()
        },
    }


def _ask(url: str, item: Item, *, max_tokens: int, fields: dict[str, object], chat: bool) -> Answer:
    asked: dict[str, object] = (
        {"messages": [{"role": "user", "content": item.prompt}]}
        if chat
        else {"prompt": item.prompt}
    )
    path = "chat/completions" if chat else "completions"
    body = {
        "model": _model(url),
        **asked,
        "max_tokens": max_tokens,
        "temperature": 0,
        "return_token_ids": True,
        **item.fields,
        **fields,
    }
    (choice,) = request(f"{url}/v1/{path}", body)["choices"]
    tokens = choice.get("response_token_ids") or choice.get("token_ids")
    if not chat:
        return Answer(tokens, choice["finish_reason"], choice["text"], thinking=False)
    message = choice["message"]
    thought, said = message.get("reasoning_content"), message["content"]
    text = thinker.said(thought or "", said) if said and thought else said or thought or ""
    return Answer(tokens, choice["finish_reason"], text, thinking=bool(thought and not said))


def _model(url: str) -> str:
    return str(request(f"{url}/v1/models")["data"][0]["id"])


def _counted(
    items: Sequence[Item], answers: Sequence[Answer], none: Sequence[Answer]
) -> dict[str, Any]:
    right = [correct(item, answer.text) for item, answer in zip(items, answers, strict=True)]
    before = [correct(item, answer.text) for item, answer in zip(items, none, strict=True)]
    cut = [answer.finish == "length" for answer in none]
    loops = [final_loop(a.tokens) is not None and a.finish == "length" for a in answers]
    pairs = zip(answers, none, strict=True)
    found = {
        "finish": dict(sorted(Counter(answer.finish for answer in answers).items())),
        "cut off in a loop": sum(loops),
        "no answer after the thoughts": sum(answer.thinking for answer in answers),
        "tokens": sum(len(answer.tokens) for answer in answers),
        "unchanged": sum(one.tokens == other.tokens for one, other in pairs),
    }
    if any(value is not None for value in right):
        met = [now and not then and at for now, then, at in zip(right, before, cut, strict=True)]
        lost = [then and not now for now, then in zip(right, before, strict=True)]
        found |= {
            "right": sum(map(bool, right)),
            "right now, at the limit without": sum(map(bool, met)),
            "right without, wrong now": sum(map(bool, lost)),
        }
    return found


def table(found: dict[str, Any]) -> str:
    """The result in Markdown."""
    first = next(iter(found["variants"].values()))
    names = [name for name in first if name != "finish"]
    place = names.index("tokens") + 1
    head = [found["model"], "stopped by the guard", *names[:place], "tokens saved", *names[place:]]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for variant, counted in found["variants"].items():
        counts = [f"{counted[name]:,}" for name in names]
        saved = 100 * (1 - counted["tokens"] / first["tokens"])
        cells = [variant, f"{counted['finish'].get('repetition', 0):,}", *counts[:place]]
        cells += [f"{saved:.0f} %", *counts[place:]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
