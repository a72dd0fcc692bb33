"""Judge the answers that a comparison of texts cannot: programs, and tasks of reasoning-gym."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from os import cpu_count
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.models import answers, sandbox
from bench.models.items import Item
from bench.records import Lines

GRADES = "grades.jsonl"
NO_GYM = "tasks of reasoning-gym need it: `pip install reasoning-gym==0.1.25`."


@cache
def gym(name: str, size: int) -> Any:
    """A data set of reasoning-gym with its default settings, always the same.

    Raises:
        ValueError: the package is not installed, or has no such data set.
    """
    try:
        package = importlib.import_module("reasoning_gym")
    except ImportError:
        raise ValueError(NO_GYM) from None
    return package.create_dataset(name, size=size, seed=0)


def judge(directory: Path, asked: Sequence[tuple[Item, str]]) -> list[bool | None]:
    """Whether outputs are right; None where no right answer is known.

    Verdicts are kept in the directory, so no program runs twice.

    Args:
        directory: of the run.
        asked: items and their outputs.

    Raises:
        SandboxError: a program must be run, and this machine has no sandbox.
        ValueError: reasoning-gym is needed and missing.
    """
    cases = [_case(item, text) for item, text in asked]
    names = [case and hashlib.sha256(case.encode(errors="replace")).hexdigest() for case in cases]
    verdicts: dict[str | None, bool] = {}
    if any(item.check for item, _ in asked):
        with Lines(directory / GRADES) as kept:
            verdicts = {line["case"]: line["right"] for line in kept.before}
            waiting = {
                name: (item, case)
                for name, case, (item, _) in zip(names, cases, asked, strict=True)
                if case is not None and name not in verdicts
            }
            with ThreadPoolExecutor(cpu_count()) as pool:
                found = pool.map(lambda asked: _right(*asked), waiting.values())
                pairs = zip(waiting, found, strict=True)
                for name, right in tqdm(pairs, "judged", len(waiting), disable=not waiting):
                    kept.add({"case": name, "right": right})
                    verdicts[name] = right
    return [
        verdicts.get(name, False) if item.check else answers.correct(item, text)
        for name, (item, text) in zip(names, asked, strict=True)
    ]


def _case(item: Item, text: str) -> str | None:
    """What decides whether an output is right; None if it is not, or if that is not judged here."""
    check: Mapping[str, Any] = item.check
    if "gym" in check:
        answer = answers.extract(text)
        return None if answer is None else json.dumps([check, answer.removesuffix(".")])
    if "function" in check:
        code = answers.function(text, check["function"])
        return None if code is None else f"{check['before']}\n{code}\n{check['after']}\n"
    return None


def _right(item: Item, case: str) -> bool:
    if "function" in item.check:
        return sandbox.passes(case)
    check, answer = json.loads(case)
    data = gym(check["gym"], 1)
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)  # 1,000 is 1000, a list is not
    return any(data.score_answer(text, check["entry"]) == 1 for text in (answer, plain))
