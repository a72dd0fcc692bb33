"""`sglang-lz loops`: whether past outputs loop, and what to set against it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import statistics
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_lz.repetition import FIELD, RECOMMENDED, Loop, RepetitionDetection, loops

TOKEN_KEYS = ("output_ids", "token_ids", "response_token_ids", "tokens")
TEXT_KEYS = ("text", "output", "response", "completion", "content")
LINES = (".jsonl", ".ndjson")
PATTERNS = 10
"""The most that a report lists."""

# Thai to Khmer, kana, and Chinese characters: written without blanks.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
# As tokenizers do: a word, or a run of one sign, so that a ruler is a few tokens and no loop.
_PIECES = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])\w){{1,16}}|(\W)\1{{0,15}}")
LARGEST_TOKEN = 2**63 - 1


class LoopsError(ValueError):
    """What is wrong, in a sentence; of a file it names the line."""


@dataclass(frozen=True)
class Output:
    """One output of a model.

    Attributes:
        place: the file, and the line of it.
        tokens: token ids; of a text, numbers that stand for its words and runs of signs.
    """

    place: str
    tokens: array[int]


def run(files: Sequence[str], asked: Mapping[str, int | None], *, as_json: bool) -> str:
    """The report on some files, in words or as JSON.

    Args:
        files: their paths; "-" is standard input.
        asked: sizes and count by their names in `repetition_detection`; None for the recommended.
        as_json: whether it is for a program.

    Raises:
        ValueError: a value out of its range, or a bad record.
        OSError: a file cannot be read.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    detection = RepetitionDetection.parse(dataclasses.asdict(RECOMMENDED) | given)
    if detection is None:
        raise LoopsError("--max-pattern-size must be above 0, got 0.")
    found = report(read(files), detection)
    return json.dumps(found, indent=1) if as_json else told(found, detection)


def read(files: Sequence[str]) -> Iterator[Output]:
    """The outputs in some files: JSON lines in those that end so and in "-", else one text each.

    Raises:
        LoopsError: a line is no JSON, or a record holds neither tokens nor text.
        OSError: a file cannot be read.
    """
    for file in files:
        if file != "-" and not file.endswith(LINES):
            text = Path(file).read_text(encoding="utf-8", errors="replace")
            yield _of_text(text, file)
            continue
        with (
            contextlib.nullcontext(sys.stdin)
            if file == "-"
            else Path(file).open(encoding="utf-8", errors="replace")
        ) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place = f"{file}, line {number}"
                    yield from _outputs(_parsed(line, place), place)


def report(outputs: Iterable[Output], detection: RepetitionDetection) -> dict[str, Any]:
    """Count outputs and their loops.

    Returns:
        Of JSON: how many outputs and tokens there are, how many outputs hold a loop and end in one,
        tokens spent in loops (after the first copy), and the patterns, by size, with how many
        outputs have one, and the median of where it begins and of its copies.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("outputs", "tokens", "outputs_with_a_loop", "outputs_that_end_in_one", "tokens_in_loops"),
        0,
    )
    by_size: dict[int, list[tuple[Loop, str]]] = defaultdict(list)
    for output in outputs:
        own = list(loops(output.tokens, detection))
        found["outputs"] += 1
        found["tokens"] += len(output.tokens)
        found["outputs_with_a_loop"] += bool(own)
        found["outputs_that_end_in_one"] += bool(own) and own[-1].end == len(output.tokens)
        found["tokens_in_loops"] += sum(loop.end - loop.begin - loop.pattern_size for loop in own)
        for loop in own:
            by_size[loop.pattern_size].append((loop, output.place))
    found["patterns"] = [
        {
            "pattern_size": size,
            "loops": len(own),
            "copies": statistics.median(loop.count for loop, _ in own),
            "begin": statistics.median(loop.begin for loop, _ in own),
            "first": own[0][1],
        }
        for size, own in sorted(by_size.items(), key=lambda pair: -len(pair[1]))[:PATTERNS]
    ]
    return found


def told(found: dict[str, Any], detection: RepetitionDetection) -> str:
    """A report in words, with the setting to try."""
    outputs, tokens = found["outputs"], found["tokens"]
    lines = [f"{'outputs':<26}{outputs:>10,}"]
    for name, key, whole in (
        ("with a loop", "outputs_with_a_loop", outputs),
        ("that end in one", "outputs_that_end_in_one", outputs),
        ("tokens", "tokens", 0),
        ("spent in loops", "tokens_in_loops", tokens),
    ):
        share = f"{100 * found[key] / whole:>8.2f} %" if whole else ""
        lines.append(f"{name:<26}{found[key]:>10,}{share}")
    if not found["outputs_with_a_loop"]:
        return "\n".join([*lines, "", "No output loops: no penalty and no guard is needed."])
    lines += ["", "pattern size   loops   copies   begins at   first seen in"]
    lines += [
        f"{p['pattern_size']:>12}{p['loops']:>8,}{p['copies']:>9g}{p['begin']:>12g}   {p['first']}"
        for p in found["patterns"]
    ]
    setting = {k: v for k, v in dataclasses.asdict(detection).items() if v not in {0, "stop"}}
    return "\n".join(
        [
            *lines,
            "",
            'To end loops, send "lz_penalty": 0.15, "lz_onset": 3.',
            f'To stop what still loops, add "{FIELD}": {json.dumps(setting)}.',
        ]
    )


def _parsed(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise LoopsError(f"{place} is no JSON ({error}).") from None


def _outputs(record: Any, place: str) -> Iterator[Output]:
    """The outputs of one record: a text, an answer of an API or of a batch, a list of them."""
    if isinstance(record, dict) and isinstance(record.get("response"), dict):
        yield from _outputs(record["response"].get("body", record["response"]), place)
        return
    if isinstance(record, list) and record and isinstance(record[0], dict):
        for one in record:
            yield from _outputs(one, place)
        return
    if isinstance(record, dict) and isinstance(record.get("choices"), list):
        for choice in record["choices"]:
            yield _of_record(choice, place)
        return
    yield _of_record(record, place)


def _of_record(record: Any, place: str) -> Output:
    if isinstance(record, str):
        return _of_text(record, place)
    record = record if isinstance(record, dict) else {}
    for key in TOKEN_KEYS:
        tokens = record.get(key)
        if isinstance(tokens, list) and all(type(token) is int for token in tokens):
            if tokens and not 0 <= min(tokens) <= max(tokens) <= LARGEST_TOKEN:
                raise LoopsError(f"{place} holds token ids below 0 or above {LARGEST_TOKEN}.")
            return Output(place, array("q", tokens))
    message = record.get("message")
    for holder in (message if isinstance(message, dict) else {}, record):
        thought = _text(holder.get("reasoning_content"))
        for key in TEXT_KEYS:
            text = _text(holder.get(key))
            if text is not None:
                return _of_text((thought or "") + text, place)
        if thought is not None:
            return _of_text(thought, place)
    raise LoopsError(
        f"{place} holds no output: none of {', '.join(TOKEN_KEYS)} is a list of token ids, and "
        f"none of {', '.join(TEXT_KEYS)} a text."
    )


def _text(content: Any) -> str | None:
    """A text, or the texts and thoughts of Anthropic's list of parts; None for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None
    parts = (part.get("text", part.get("thinking")) for part in content)
    return "".join(part for part in parts if isinstance(part, str))


def _of_text(text: str, place: str) -> Output:
    numbers: dict[str, int] = {}
    pieces = (found[0] for found in _PIECES.finditer(text))
    tokens = array("q", (numbers.setdefault(piece, len(numbers)) for piece in pieces))
    return Output(place, tokens)
