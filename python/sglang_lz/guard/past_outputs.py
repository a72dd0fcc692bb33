"""Reads the outputs in files of past answers, for `sglang-lz loops`.

A file is either read to its end or rejected with a sentence that names the line: unread outputs
must not count as free of loops. It may be a server's log, JSON values, or the text of a single
output; the format is recognised from the first characters. `LARGEST_RECORD` bounds memory use for
any file.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import io
import json
import re
import sys
import unicodedata
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, BinaryIO, TextIO

import numpy as np

from lz_penalty.detector import Loop, loops
from lz_penalty.fields.repetition import RepetitionDetection
from lz_penalty.numbers import is_number

TOKEN_KEYS = ("output_ids", "token_ids", "response_token_ids", "tokens")
TEXT_KEYS = ("text", "output", "response", "completion", "content")
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
PART_KEYS = ("text", "thinking", "summary", "content", "arguments")
STDIN = "-"
JSON_NAMES = re.compile(r"\.(jsonl|ndjson|json)(\.gz)?$")

CHUNK = 2**20
"""How many characters to read at a time; the first chunk determines the kind of file."""
LARGEST_RECORD = 2**25
"""The most characters in a line of a log, a JSON value, or a text."""
MOST_UNPACKED = 2**34
"""The most bytes that a compressed file may unpack to."""
LARGEST_TOKEN = 2**63 - 1
OMITTED = -1
"""Stands for a part that a log omitted."""

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

_GZIP = b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

_BLANKS = re.compile("[ \t\r\n\ufeff]*")
_BEGINS_JSON = re.compile(r'[\[{]\s*["{\[]')

FINISH = "Finish: obj="
# How the lines of SGLang's and vLLM's logs begin.
_SGLANG = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]\n]*\] "
_VLLM = r"(?:\([^)\n]*\) )?[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\n]*\] "
_LOG = re.compile(f"^(?:{_SGLANG}|{_VLLM})", re.M)
_SGLANG_LINE = re.compile(_SGLANG)
_VLLM_LINE = re.compile(_VLLM + "Generated response ")
# A request contains arbitrary client text, so a possible end of it only counts outside its strings.
# (No possessive repeats: for groups, they match wrongly before Python 3.11.5.)
_QUOTE_OR_OUT = re.compile(r"""['"]|, out=\{""")
_SGLANG_IDS = re.compile(
    r"'output_ids': (?P<ids>\[[0-9, ]*\])(?: \.\.\. (?P<more>\[[0-9, ]*\]))?, "
)
_VLLM_BEGIN = re.compile(
    r"\S+(?P<part> \(streaming delta\))?(?: \(streaming complete\))?: output: "
)
_VLLM_END = re.compile(
    r", (?:output_token_ids: (?:None|[\[(](?P<ids>[0-9, ]*)[\])]), )?finish_reason: "
)
# What SGLang's --log-requests-level 2 keeps of a long text or list, and the mark in its middle.
_KEPT = 2048
_GAP = "..."


class LoopsError(ValueError):
    """An error in the input, as a sentence; for a file it names the line."""


@dataclass(frozen=True)
class Output:
    """One output of a model.

    Attributes:
        place: the file and the line.
        tokens: token ids, or for a text, numbers that stand for its words and runs of signs. A part
            that a log omitted is one token that occurs nowhere else.
        is_cut: whether a log omitted a part.
        words: what the numbers in `tokens` stand for, by number; empty for token ids.
        unit: what a number in `tokens` is.
        texts: the text of token ids, in the parts that a log kept; empty if there is none.
    """

    place: str
    tokens: array[int]
    is_cut: bool = False
    words: tuple[str, ...] = ()
    unit: str = TOKENS
    texts: tuple[str, ...] = ()

    def text(self, most: int) -> str:
        """The text, at most its first `most` characters; only if there are `words`."""
        # Each token is at least one character.
        words = (_GAP if token == OMITTED else self.words[token] for token in self.tokens[:most])
        return "".join(words)[:most]


def searched(output: Output, detection: RepetitionDetection) -> tuple[Output, list[Loop]]:
    """The loops of an output, and the output in the unit in which they are counted.

    A tokenizer may join what is repeated in other ways than words do ("hahaha"). A text whose words
    do not loop is therefore searched by its characters, too.

    Raises:
        LoopsError: numbers are ignored, and the output is token ids without their text.
    """
    if output.unit == TOKENS and detection.ignore_numbers:
        if not output.texts:
            raise LoopsError(
                f"{output.place} has token ids without a text, which do not show what is a number: "
                "leave out --ignore-numbers."
            )
        output = _of_texts([*output.texts], output.place)
    if output.unit == TOKENS:
        return output, list(loops(output.tokens, detection))
    for unit in (WORDS, CHARACTERS):
        one = output if unit == WORDS else _of_texts(_texts(output), output.place, unit)
        numbers = np.fromiter(map(is_number, one.words), np.uint8, len(one.words))
        found = [loop for loop in loops(one.tokens, detection, numbers) if _is_long(loop, one)]
        if found:
            return one, found
    return output, []


def _texts(output: Output) -> list[str]:
    """The text of an output, in the parts that a log kept."""
    parts: list[list[str]] = [[]]
    for token in output.tokens:
        if token == OMITTED:
            parts.append([])
        else:
            parts[-1].append(output.words[token])
    return ["".join(part) for part in parts]


def _is_long(loop: Loop, output: Output) -> bool:
    """Whether a loop of a text is longer than correct text repeats itself."""
    begin, end = loop.begin, loop.end
    pattern = "".join(
        output.words[token] for token in output.tokens[begin : begin + loop.pattern_size]
    )
    following = [output.words[token] for token in output.tokens[end : end + 1] if token != OMITTED]
    others = "".join(character for character in pattern if not _is_ruling(character))
    longest = 0
    if not others:
        longest = LONGEST_RULER
    elif output.unit == CHARACTERS and others.isascii():
        longest = LONGEST_CODE if len(pattern) > 1 else LONGEST_RUN
    elif _PICTURES.fullmatch(others) and following and following[0][0] in "\r\n":
        longest = LONGEST_PICTURES
    return loop.count * len(pattern) > longest


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
    try:
        with _opened(file) as stream:
            for output in _outputs_of(stream, file):
                is_empty = False
                yield output
    except UnicodeDecodeError as error:
        raise LoopsError(f"{file} is neither gzip nor text in UTF-8 ({error.reason}).") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LoopsError(f"{file} is a damaged gzip file ({error}).") from None
    if is_empty:
        raise LoopsError(f"{file} holds no output.")


@contextlib.contextmanager
def _opened(file: str) -> Iterator[TextIO]:
    if file == STDIN and sys.stdin is None:
        raise LoopsError("Standard input is closed.")
    raw: Any
    with contextlib.nullcontext(sys.stdin.buffer) if file == STDIN else open(file, "rb") as raw:
        binary = io.BufferedReader(_Unpacked(raw, file)) if raw.peek(2)[:2] == _GZIP else raw
        encoding = "utf-16" if binary.peek(2)[:2] in _UTF_16 else "utf-8-sig"
        stream = io.TextIOWrapper(binary, encoding)
        try:
            yield stream
        finally:
            stream.detach()


class _Unpacked(io.RawIOBase):
    """The contents of a compressed file, limited to `MOST_UNPACKED` bytes."""

    def __init__(self, raw: BinaryIO, file: str) -> None:
        self._gzip, self._file, self._left = gzip.GzipFile(fileobj=raw), file, MOST_UNPACKED

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Unpack as much as fits into a buffer; returns the number of bytes, 0 at the end."""
        data = self._gzip.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise LoopsError(f"{self._file} unpacks to more than {MOST_UNPACKED:,} bytes.")
        buffer[: len(data)] = data
        return len(data)


def _outputs_of(stream: TextIO, file: str) -> Iterator[Output]:
    head = stream.read(CHUNK)
    if _LOG.search(head):
        yield from _in_log(head, stream, file)
    elif file == STDIN or JSON_NAMES.search(file) or _is_json(head):
        yield from _in_json(head, stream, file)
    else:
        text = head + stream.read(LARGEST_RECORD)
        if len(text) > LARGEST_RECORD:
            raise LoopsError(
                f"{file} is one text of more than {LARGEST_RECORD:,} characters; an output is not "
                "as long."
            )
        if "\0" in text:
            raise LoopsError(f"{file} is no text: it holds zero bytes.")
        if text:
            yield _of_texts([text], file)


def _is_json(head: str) -> bool:
    """Whether a file that begins with this holds JSON values rather than a single text."""
    begin = _blank_end(head, 0)
    try:
        value, end = json.JSONDecoder().raw_decode(head, begin)
    except RecursionError:
        return True
    except ValueError:
        return len(head) == CHUNK and bool(_BEGINS_JSON.match(head, begin))
    if not isinstance(value, dict | list | str):
        return False
    rest = head[end : _blank_end(head, end)]
    return "\n" in rest or end + len(rest) == len(head)


def _blank_end(text: str, begin: int) -> int:
    found = _BLANKS.match(text, begin)
    assert found is not None
    return found.end()


def _in_json(buffer: str, stream: TextIO, file: str) -> Iterator[Output]:
    """The outputs in a sequence of JSON values, including those in arrays of them."""
    decode = json.JSONDecoder().raw_decode
    at, line, in_array, is_last = 0, 1, False, not buffer
    while True:
        begin = _blank_end(buffer, at)
        line += buffer.count("\n", at, begin)
        at = begin
        mark = buffer[at : at + 1]
        place = f"{file}, line {line}"
        if in_array and mark and mark in ",]":
            in_array = mark == ","
            at += 1
            continue
        if not in_array and mark == "[":
            in_array = True
            at += 1
            continue
        try:
            value, end = decode(buffer, at)
        except RecursionError:
            raise _too_deep(place) from None
        except ValueError as error:
            problem = getattr(error, "msg", str(error))
        else:
            # A number may continue in the next chunk.
            if is_last or end < len(buffer):
                yield from _outputs(value, place)
                line += buffer.count("\n", at, end)
                at = end
                continue
            problem = ""
        if is_last:
            if mark:
                raise LoopsError(f"{place} is no JSON ({problem}).")
            if in_array:
                raise LoopsError(f"{file} ends inside an array.")
            return
        if len(buffer) - at > LARGEST_RECORD:
            raise LoopsError(
                f"{place} is no JSON of at most {LARGEST_RECORD:,} characters ({problem})."
            )
        more = stream.read(max(CHUNK, len(buffer) - at))
        buffer, at, is_last = buffer[at:] + more, 0, not more


def _in_log(head: str, stream: TextIO, file: str) -> Iterator[Output]:
    """The outputs that SGLang or vLLM wrote to a log."""
    for number, line in enumerate(_lines(head, stream, file), 1):
        place = f"{file}, line {number}"
        if found := _SGLANG_LINE.match(line):
            if line.startswith("{", found.end()):
                yield from _of_json_line(line[found.end() :], place)
            elif line.startswith(FINISH, found.end()):
                yield from _of_sglang_line(line, found.end() + len(FINISH), place)
        elif found := _VLLM_LINE.match(line):
            yield from _of_vllm_line(line, found.end(), place)


def _lines(buffer: str, stream: TextIO, file: str) -> Iterator[str]:
    while True:
        *lines, buffer = buffer.split("\n")
        yield from lines
        if len(buffer) > LARGEST_RECORD:
            raise LoopsError(f"{file} has a line of more than {LARGEST_RECORD:,} characters.")
        more = stream.read(CHUNK)
        if not more:
            yield buffer
            return
        buffer += more


def _of_json_line(text: str, place: str) -> Iterator[Output]:
    try:
        record = json.loads(text)
    except RecursionError:
        raise _too_deep(place) from None
    except ValueError as error:
        raise LoopsError(f"{place} is no JSON ({error}).") from None
    if isinstance(record, dict) and str(record.get("event")).startswith("request."):
        yield from _outputs(record, place)


def _of_sglang_line(line: str, begin: int, place: str) -> Iterator[Output]:
    at = _out_begin(line, begin)
    if at is None:
        raise _unknown(place)
    if line.startswith(("EmbeddingReqInput", "GenerateReqInput(rid='HEALTH_CHECK"), begin):
        return
    texts: list[str] = []
    if line.startswith("'text': ", at):
        text, at = _string(line, at + len("'text': "), place)
        texts.append(text)
        if line.startswith(" ... ", at):
            text, at = _string(line, at + len(" ... "), place)
            texts.append(text)
        at += len(", ")
    if found := _SGLANG_IDS.match(line, at):
        halves = [json.loads(half) for half in (found["ids"], found["more"]) if half]
        yield _of_tokens(halves, place, texts)
    elif texts:
        yield _of_texts(texts, place)
    else:
        raise _left_out(place)


def _of_vllm_line(line: str, begin: int, place: str) -> Iterator[Output]:
    found = _VLLM_BEGIN.match(line, begin)
    if found is None:
        raise _unknown(place)
    if found["part"]:
        return  # the log has another line with the whole output
    text, at = _string(line, found.end(), place)
    found = _VLLM_END.match(line, at)
    if found is None:
        raise _unknown(place)
    if found["ids"]:
        yield _of_tokens([json.loads(f"[{found['ids'].rstrip(', ')}]")], place, [text])
    else:
        yield _of_texts([text], place)


def _out_begin(line: str, at: int) -> int | None:
    """Where the answer begins, after the request; None if it is not found."""
    while found := _QUOTE_OR_OUT.search(line, at):
        if len(found[0]) > 1:
            return found.end()
        end = _string_end(line, found.start())
        if end is None:
            return None
        at = end
    return None


def _string(line: str, begin: int, place: str) -> tuple[str, int]:
    """The string that begins there, in the format of Python's repr, and where it ends."""
    end = _string_end(line, begin) if line[begin : begin + 1] in ("'", '"') else None
    if end is None:
        raise _unknown(place)
    return ast.literal_eval(line[begin:end]), end


def _string_end(line: str, begin: int) -> int | None:
    """Where the string that begins with the quote at `begin` ends; None if it is unterminated."""
    end = begin
    while (end := line.find(line[begin], end + 1)) >= 0:
        before = end - 1
        while line[before] == "\\":
            before -= 1
        if (end - before) % 2:
            return end + 1
    return None


def _unknown(place: str) -> LoopsError:
    return LoopsError(f"{place} is an output in a form that is not known.")


def _too_deep(place: str) -> LoopsError:
    return LoopsError(f"{place} is nested too deeply.")


def _left_out(place: str) -> LoopsError:
    return LoopsError(
        f"{place} has no output: that log leaves outputs out; take --log-requests-level 3."
    )


def _outputs(record: Any, place: str) -> Iterator[Output]:
    """The outputs of one record: a text, tokens, an answer of an API or a batch, a list of these, a
    sample of lm_eval, or a request in SGLang's log."""
    try:
        found = list(_of_record(record, place))
    except RecursionError:
        raise _too_deep(place) from None
    yield from found


def _of_record(record: Any, place: str) -> Iterator[Output]:
    if isinstance(record, str):
        yield _of_texts([record], place)
    elif isinstance(record, list) and record and isinstance(record[0], dict):
        for one in record:
            yield from _of_record(one, place)
    elif not isinstance(record, dict):
        raise _no_output(place)
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
                yield _of_texts([one], place)
    else:
        yield _of_answer(record, place)


def _of_request(record: dict[str, Any], place: str) -> Iterator[Output]:
    """The output of a request in SGLang's log, unless the log only shows its beginning."""
    out = record.get("out")
    rid = str(record.get("rid"))
    if record["event"] != "request.finished" or rid.startswith("HEALTH_CHECK"):
        return
    if not isinstance(out, dict) or not out.keys() & {"text", "output_ids", "embedding"}:
        raise _left_out(place)
    if "embedding" not in out:
        yield _of_answer(out, place)


def _of_answer(record: Any, place: str) -> Output:
    record = record if isinstance(record, dict) else {}
    texts = _texts_of_answer(record)
    for key in TOKEN_KEYS:
        tokens = record.get(key)
        if isinstance(tokens, list):
            gap = _KEPT // 2
            if len(tokens) == _KEPT + 1 and tokens[gap] == _GAP:
                halves = [tokens[:gap], tokens[gap + 1 :]]
            else:
                halves = [tokens]
            if all(type(token) is int for half in halves for token in half):
                return _of_tokens(halves, place, texts)
    if not texts:
        raise _no_output(place)
    return _of_texts(texts, place)


def _texts_of_answer(record: dict[str, Any]) -> list[str]:
    """The text of an answer, in the parts that a log kept; empty if it has none."""
    message = record.get("message")
    for holder in (message if isinstance(message, dict) else {}, record):
        thoughts = (_text(holder.get(key)) for key in THOUGHT_KEYS)
        texts = (_text(holder.get(key)) for key in TEXT_KEYS)
        found = [
            next(filter(None, thoughts), None),
            next((text for text in texts if text is not None), None),
            _text(holder.get("tool_calls")),
        ]
        if found != [None] * 3:
            return _halves("".join(filter(None, found)))
    return []


def _no_output(place: str) -> LoopsError:
    return LoopsError(
        f"{place} holds no output: none of {', '.join(TOKEN_KEYS)} is a list of token ids, and "
        f"none of {', '.join(TEXT_KEYS)} a text."
    )


def _text(content: Any) -> str | None:
    """The text of a string or of a list of parts (texts, thoughts, tool calls); None if none."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [text for part in content if (text := _text_of_part(part)) is not None]
        return "".join(texts) if texts else None
    return None


def _text_of_part(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    if isinstance(part.get("input"), dict):
        return json.dumps(part["input"], ensure_ascii=False)
    if isinstance(part.get("function"), dict):
        return _text(part["function"].get("arguments"))
    texts = (_text(part.get(key)) for key in PART_KEYS)
    return next(filter(None, texts), None)


def _halves(text: str) -> list[str]:
    begin = _KEPT // 2
    is_cut = len(text) == _KEPT + len(_GAP) and text.startswith(_GAP, begin)
    return [text[:begin], text[begin + len(_GAP) :]] if is_cut else [text]


def _of_tokens(halves: list[list[int]], place: str, texts: Iterable[str] = ()) -> Output:
    for half in halves:
        if half and not 0 <= min(half) <= max(half) <= LARGEST_TOKEN:
            raise LoopsError(f"{place} holds token ids below 0 or above {LARGEST_TOKEN}.")
    return replace(_joined([array("q", half) for half in halves], place), texts=tuple(texts))


def _of_texts(halves: list[str], place: str, unit: str = WORDS) -> Output:
    numbers: dict[str, int] = {}
    tokens = []
    for half in halves:
        pieces = half if unit == CHARACTERS else (found[0] for found in _PIECES.finditer(half))
        tokens.append(array("q", (numbers.setdefault(piece, len(numbers)) for piece in pieces)))
    return _joined(tokens, place, numbers, unit)


def _joined(
    halves: list[array[int]],
    place: str,
    numbers: Mapping[str, int] = MappingProxyType({}),
    unit: str = TOKENS,
) -> Output:
    tokens = halves[0]
    for half in halves[1:]:
        tokens.append(OMITTED)
        tokens.extend(half)
    return Output(place, tokens, len(halves) > 1, tuple(numbers), unit)
