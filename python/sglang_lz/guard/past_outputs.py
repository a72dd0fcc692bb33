"""Reads the outputs in files of past answers, for `sglang-lz loops`.

A file is either read to its end or rejected with a sentence that names the line: unread outputs
must not count as free of loops. It is the text of one output if it is named .txt. Otherwise it has
a JSON value in each line, or is one JSON value, or is a log of SGLang with requests in JSON.
`LARGEST_RECORD` bounds memory use for any file.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple, TextIO

import numpy as np

from lz_penalty.detector import Loop, loops
from lz_penalty.fields.repetition import RepetitionDetection
from lz_penalty.numbers import is_number

TOKEN_KEYS = ("output_ids", "token_ids", "response_token_ids", "tokens")
TEXT_KEYS = ("text", "output", "response", "completion", "content")
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking", "summary")
CALL_KEYS = ("tool_calls", "arguments")

CHUNK = 2**20
"""How many characters determine the kind of file."""
LARGEST_RECORD = 2**25
"""The most characters in a line, a JSON value, or a text."""
LARGEST_TOKEN = 2**63 - 1

# A word or a run of one sign, as a tokenizer would take it. (Without a bound, `re` would need 75
# bytes for each character of a run.)
_PIECES = re.compile(r"\w+|(\W)\1{0,4095}")
# Emoji and the replacement character: no rules, though Unicode puts them among the signs.
_PICTURES = re.compile(
    "[\u231a\u231b\u23e9-\u23f3\u2607-\u27bf\u2b50\u2b55\ufffd\U0001f000-\U0001faff]+"
)
# Marks of length in Arabic and Japanese: rules consist of them, though Unicode calls them letters.
_RULING_LETTERS = "\u0640\u30fc"
LONGEST_RULER, LONGEST_RUN, LONGEST_CODE, LONGEST_PICTURES = 280, 128, 80, 50
"""How many characters of a repeated pattern are no loop yet: of signs alone, as in rules of tables;
of one ASCII letter, as in hashes; of several, as in encoded data; of emoji that end a line."""
WORDS, CHARACTERS, TOKENS = "words and signs", "characters", "tokens"

# How the lines of SGLang's log begin, and among them those of finished requests.
_LOG = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]\n]*\] ", re.M)
_JSON = r'\{"timestamp": "[^"]*", "event": "request\.finished"'
_FINISHED = re.compile(f"{_LOG.pattern}(?:Finish: obj=|(?P<json>{_JSON}))")
# What --log-requests-level 2 keeps of a long text, and the mark in its middle.
_KEPT, _GAP = 2048, "..."


class LoopsError(ValueError):
    """An error in the input, as a sentence; for a file it names the line."""


@dataclass(frozen=True)
class Output:
    """One output of a model, as its text, its tokens, or both.

    Attributes:
        place: the file and the line.
        text: None if there are only tokens.
        tokens: token ids; None if there is only a text.
    """

    place: str
    text: str | None
    tokens: array[int] | None = None

    @property
    def has_gap(self) -> bool:
        """Whether a log left out the middle of the text."""
        text = self.text or ""
        return len(text) == _KEPT + len(_GAP) and text.startswith(_GAP, _KEPT // 2)


class Search(NamedTuple):
    """The loops of an output, the unit in which they are counted, and its length in that unit."""

    unit: str
    length: int
    loops: list[Loop]


def searched(output: Output, detection: RepetitionDetection) -> Search:
    """Search an output for loops: its token ids, or else its text.

    A tokenizer may join what is repeated in other ways than words do ("hahaha"). A text whose words
    do not loop is therefore searched by its characters, too.

    Raises:
        LoopsError: numbers are ignored, and the output is token ids without their text.
    """
    if output.tokens is not None and not detection.ignore_numbers:
        return Search(TOKENS, len(output.tokens), list(loops(output.tokens, detection)))
    if output.text is None:
        raise LoopsError(
            f"{output.place} has token ids without a text, which do not show what is a number: "
            "leave out --ignore-numbers."
        )
    by_words = _searched_by(WORDS, output.text, detection)
    if by_words.loops:
        return by_words
    by_characters = _searched_by(CHARACTERS, output.text, detection)
    return by_characters if by_characters.loops else by_words


def _searched_by(unit: str, text: str, detection: RepetitionDetection) -> Search:
    pieces = text if unit == CHARACTERS else (found[0] for found in _PIECES.finditer(text))
    numbers: dict[str, int] = {}
    tokens = array("q", (numbers.setdefault(piece, len(numbers)) for piece in pieces))
    words = [*numbers]
    are_numbers = np.fromiter(map(is_number, words), np.uint8, len(words))
    found = []
    for loop in loops(tokens, detection, are_numbers):
        begin, end = loop.begin, loop.end
        pattern = "".join(words[token] for token in tokens[begin : begin + loop.pattern_size])
        following = "".join(words[token] for token in tokens[end : end + 1])
        if loop.count * len(pattern) > _longest_right(unit, pattern, following):
            found.append(loop)
    return Search(unit, len(tokens), found)


def _longest_right(unit: str, pattern: str, following: str) -> int:
    """How many characters correct text consists of at most that repeats this pattern."""
    others = "".join(character for character in pattern if not _is_ruling(character))
    if not others:
        return LONGEST_RULER
    if unit == CHARACTERS and others.isascii():
        return LONGEST_CODE if len(pattern) > 1 else LONGEST_RUN
    if _PICTURES.fullmatch(others) and following.startswith(("\r", "\n")):
        return LONGEST_PICTURES
    return 0


@cache
def _is_ruling(character: str) -> bool:
    """Whether rules consist of it: signs and blanks, but neither emoji nor ends of lines."""
    if character in _RULING_LETTERS or character == "\t":
        return True
    return unicodedata.category(character)[0] in "PSZ" and not _PICTURES.match(character)


def read(file: str) -> Iterator[Output]:
    """The outputs in a file; at least one.

    Args:
        file: its path; "-" is standard input.

    Raises:
        LoopsError: part of the file cannot be parsed, or it contains no output.
        OSError: the file cannot be read.
    """
    is_empty = True
    with open(0 if file == "-" else file, encoding="utf-8-sig") as stream:
        try:
            for output in _outputs_of(stream, file):
                is_empty = False
                yield output
        except UnicodeDecodeError as error:
            raise LoopsError(
                f"{file} is not text in UTF-8 ({error.reason}); unpack it first, if it is packed."
            ) from None
    if is_empty:
        raise LoopsError(f"{file} holds no output.")


def _outputs_of(stream: TextIO, file: str) -> Iterator[Output]:
    head = stream.read(CHUNK) + stream.readline(LARGEST_RECORD + 1)
    if file.endswith(".txt"):
        if text := _whole(head, stream, file):
            yield Output(file, text)
    elif _LOG.search(head):
        yield from _in_log(_lines(head, stream, file), file)
    elif _begins_with_values(head):
        for number, line in enumerate(_lines(head, stream, file), 1):
            if line.strip():
                yield from _in_json(line, file, number)
    else:
        yield from _in_json(_whole(head, stream, file), file, 1)


def _whole(head: str, stream: TextIO, file: str) -> str:
    text = head + stream.read(LARGEST_RECORD)
    if len(text) > LARGEST_RECORD:
        raise LoopsError(
            f"{file} is one value of more than {LARGEST_RECORD:,} characters; write each output in "
            "a line of its own, as JSON."
        )
    return text


def _begins_with_values(head: str) -> bool:
    """Whether the lines of a file are JSON values, rather than parts of one."""
    first = head.lstrip().partition("\n")[0]
    with contextlib.suppress(RecursionError):
        try:
            json.loads(first)
        except ValueError:
            return not first
    return True


def _lines(head: str, stream: TextIO, file: str) -> Iterator[str]:
    following = iter(partial(stream.readline, LARGEST_RECORD + 1), "")
    for whole in chain(io.StringIO(head), following):
        line = whole.removesuffix("\n")
        if len(line) > LARGEST_RECORD:
            raise LoopsError(f"{file} has a line of more than {LARGEST_RECORD:,} characters.")
        yield line


def _in_log(lines: Iterator[str], file: str) -> Iterator[Output]:
    for number, line in enumerate(lines, 1):
        found = _FINISHED.match(line)
        if found and found["json"]:
            yield from _in_json(line[found.start("json") :], file, number)
        elif found:
            raise LoopsError(
                f"{file}, line {number} is a request that is not in JSON: take "
                "--log-requests-format json."
            )


def _in_json(text: str, file: str, line: int) -> list[Output]:
    place = f"{file}, line {line}"
    try:
        return list(_of_record(json.loads(text), place))
    except LoopsError:
        raise
    except RecursionError:
        raise LoopsError(f"{place} is nested too deeply.") from None
    except ValueError as error:
        line += getattr(error, "lineno", 1) - 1
        problem = getattr(error, "msg", str(error))
        raise LoopsError(f"{file}, line {line} is no JSON ({problem}).") from None


def _of_record(record: Any, place: str) -> Iterator[Output]:
    """The outputs of one record: a text, tokens, an answer of an API or a batch, a list of these, a
    sample of lm_eval, or a request in SGLang's log."""
    if isinstance(record, list):
        for number, one in enumerate(record, 1):
            yield from _of_record(one, f"{place}, item {number}")
    elif isinstance(record, str):
        yield Output(place, record)
    elif not isinstance(record, dict):
        yield _of_answer({}, place)
    elif str(record.get("event")).startswith("request."):
        yield from _of_request(record, place)
    elif isinstance(record.get("response"), dict):
        yield from _of_record(record["response"].get("body", record["response"]), place)
    elif isinstance(record.get("choices"), list):
        for choice in record["choices"]:
            yield _of_answer(choice, place)
    elif isinstance(record.get("resps"), list):
        for repeats in record["resps"]:
            for one in repeats if isinstance(repeats, list) else [repeats]:
                if not isinstance(one, str):
                    raise LoopsError(f"{place} holds no output: its resps are no texts.")
                yield Output(place, one)
    else:
        yield _of_answer(record, place)


def _of_request(record: dict[str, Any], place: str) -> Iterator[Output]:
    """The output of a request in SGLang's log, unless the line only shows its beginning."""
    out = record.get("out")
    out = out if isinstance(out, dict) else {}
    is_check = str(record.get("rid")).startswith("HEALTH_CHECK")
    if record["event"] != "request.finished" or is_check or "embedding" in out:
        return
    try:
        yield _of_answer(out, place)
    except LoopsError:
        raise LoopsError(
            f"{place} has no output: that log leaves outputs out; take --log-requests-level 3."
        ) from None


def _of_answer(record: Any, place: str) -> Output:
    record = record if isinstance(record, dict) else {}
    message = record.get("message")
    text = _text_of(message) if isinstance(message, dict) else None
    text = _text_of(record) if text is None else text
    for key in TOKEN_KEYS:
        tokens = record.get(key)
        if isinstance(tokens, list) and all(type(token) is int for token in tokens):
            if tokens and not 0 <= min(tokens) <= max(tokens) <= LARGEST_TOKEN:
                raise LoopsError(f"{place} holds token ids below 0 or above {LARGEST_TOKEN}.")
            return Output(place, text, array("q", tokens))
    if text is None:
        raise LoopsError(
            f"{place} holds no output: none of {', '.join(TOKEN_KEYS)} is a list of token ids, and "
            f"none of {', '.join(TEXT_KEYS)} a text."
        )
    return Output(place, text)


def _text(content: Any) -> str | None:
    """The text of a string or of a list of parts (texts, thoughts, tool calls); None if none."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return _joined(_text_of(part) for part in content if isinstance(part, dict))
    return None


def _text_of(record: dict[str, Any]) -> str | None:
    """The thoughts, the answer and the calls in an object. It may have each under several names."""
    if isinstance(record.get("input"), dict) and record.get("type") == "tool_use":
        return json.dumps(record["input"], ensure_ascii=False)
    if isinstance(record.get("function"), dict):
        return _text_of(record["function"])
    parts = []
    for keys in (THOUGHT_KEYS, TEXT_KEYS, CALL_KEYS):
        texts = [_text(record.get(key)) for key in keys]
        parts.append(next(filter(None, texts), "" if "" in texts else None))
    return _joined(parts)


def _joined(parts: Iterable[str | None]) -> str | None:
    found = [part for part in parts if part is not None]
    return "".join(found) if found else None
