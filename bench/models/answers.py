r"""Read the answer or the code off an output, and judge it.

The last answer counts: the rest of the line after "Answer:", without one the last complete
`\boxed{...}`. No sentence is searched for a value that it might mean. Programs run in a sandbox,
and tasks of reasoning-gym have its scores.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from os import cpu_count
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.models import sandbox
from bench.models.grid import Item
from bench.records import Lines

GRADES = "grades.jsonl"
NO_GYM = "tasks of reasoning-gym need it: `pip install reasoning-gym==0.1.25`."

_INSIDE = r"[^{}]*+"
for _ in range(4):  # braces nested as deep as anyone writes them
    _INSIDE = rf"(?:[^{{}}]++|\{{{_INSIDE}\}})*+"
_BOX = re.compile(rf"\\f?box(?:ed)?\s*\{{({_INSIDE})\}}")

_MARKUP = re.compile(
    r"\\(?:text\w*|math\w+|bf|displaystyle|left|right|[()\[\],;!$ ])|[*$`{}]|\b_+|_+\b"
)
_SAID = re.compile(r"(?i)\banswer[*_`]*\s*:[ \t]*(\S[^\n]*)")


def extract(text: str) -> str | None:
    """Return the answer that an output gives, None if it gives none.

    Where the output ends its thinking (`</think>`), what follows counts if there is an answer in
    it.
    """
    _, ended, said = text.rpartition("</think>")
    answer = _read(said) if ended else None
    return _read(text) if answer is None else answer


def correct(item: Item, text: str) -> bool | None:
    """Return whether an output gives the item's answer; None if the item has none."""
    if item.answer is None:
        return None
    found = extract(text)
    return found is not None and _comparable(found) == _comparable(item.answer)


def code_of(text: str) -> str:
    """The code blocks of an output, also an unfinished one; all of it if it has no block."""
    found = _blocks(text)
    return "\n".join(code for code, _ in found) if found else text


def function(text: str, name: str) -> str | None:
    """The first finished code block of an output that defines a function; None without one.

    An output without a block counts as one.
    """
    found = _blocks(text) or [(text, True)]
    defines = re.compile(rf"(?:async )?def {re.escape(name)}\b")
    for code, finished in found:
        plain = textwrap.dedent(code)
        if finished and any(map(defines.match, plain.splitlines())):
            return plain
    return None


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
            pool = ThreadPoolExecutor(cpu_count())
            try:
                found = pool.map(lambda asked: _right(*asked), waiting.values())
                pairs = zip(waiting, found, strict=True)
                for name, right in tqdm(pairs, "judged", len(waiting), disable=not waiting):
                    kept.add({"case": name, "right": right})
                    verdicts[name] = right
            finally:
                pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for all of them
    return [
        verdicts.get(name, False) if item.check else correct(item, text)
        for name, (item, text) in zip(names, asked, strict=True)
    ]


def _case(item: Item, text: str) -> str | None:
    """What decides whether an output is right; None if it is not, or if that is not judged here."""
    check: Mapping[str, Any] = item.check
    if "gym" in check:
        answer = extract(text)
        # Of an equation, what it says in the end.
        value = (answer or "").rpartition("=")[2].strip().removesuffix(".")
        return json.dumps([check, value]) if value else None
    if "function" in check:
        code = function(text, check["function"])
        return None if code is None else f"{check['before']}\n{code}\n{check['after']}\n"
    return None


def _right(item: Item, case: str) -> bool:
    if "function" in item.check:
        return sandbox.passes(case)
    check, answer = json.loads(case)
    data = gym(check["gym"], 1)
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)  # 1,000 is 1000, a list is not
    return any(data.score_answer(text, check["entry"]) == 1 for text in (answer, plain))


def _blocks(text: str) -> list[tuple[str, bool]]:
    """The code between fences, and whether the second fence is there."""
    parts = re.split(r"^[ \t]*```.*$", text, flags=re.MULTILINE)
    return [(code.strip("\n"), 2 * i + 2 < len(parts)) for i, code in enumerate(parts[1::2])]


def _read(text: str) -> str | None:
    # An empty box is a mention of the form.
    said = _SAID.findall(text) or [inside for inside in _BOX.findall(text) if inside.strip()]
    if not said:
        return None
    answer = _plain(_BOX.sub(r"\1", said[-1])).strip()
    return answer or None


def _plain(text: str) -> str:
    """Take the markup of Markdown and LaTeX away, as far as answers have any."""
    return _MARKUP.sub("", text)


def _comparable(answer: str) -> str:
    return " ".join(_plain(answer).split()).removesuffix(".").casefold()
