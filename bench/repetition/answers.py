"""Read the answer off an output, and grade it.

An answer may have many forms, but its value must be exact: the last one counts, a value out of
range is wrong and is not corrected, and no sentence is searched for a value that it might mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bench.repetition.items import Item, Kind

_INSIDE = r"[^{}]*+"
for _ in range(4):  # braces nested as deep as anyone writes them
    _INSIDE = rf"(?:[^{{}}]++|\{{{_INSIDE}\}})*+"
_BOX = re.compile(rf"\\f?box(?:ed)?\s*\{{({_INSIDE})\}}")

_UNIT = re.compile(r"\\(?:text|mathrm)\s*\{[^{}\d]*\}")
_DEGREES = re.compile(r"\^\s*\{?\\circ\}?|°")
_MARKUP = re.compile(
    r"\\(?:text\w*|math\w+|bf|displaystyle|left|right|[()\[\],;!$ ])|[*$`{}]|\b_+|_+\b"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_INTEGER = re.compile(r"[\s(]*\+?0*(\d{1,3})(?:\.0*)?[\s)]*")

_SIGN = r"+\u2212\u2013-"  # models write a minus sign or an en dash for a minus, too
_NUMBER = rf"([{_SIGN}]?\d[\d,]*+(?:\.\d+)?+)"
_IS = r"\s*(?:is|was|=|:|(?:must|should|would) be)"
_ANSWER_IS = rf"\banswer{_IS}[^\w\n({_SIGN}]*"
_HENCE = r"(?:(?:thus|therefore|simply|indeed|equal to)\b\s*)?"
# A number that is a part of a term is not the answer, but what the term equals. One letter makes a
# term, more are a unit: "73x", "73cm".
_SAID_NUMBER = re.compile(
    rf"(?i:{_ANSWER_IS}{_HENCE})\(?{_NUMBER}(?![^\W\d]\b| *(?:[+*/^=π√]|\\[a-z]))"
)
# Below a heading a number counts only alone on its line, for it could number a step.
_HEADED_NUMBER = re.compile(rf"(?i:\banswer\b:?[^\S\n]*+\n\s*+){_NUMBER}[ .]*$", re.MULTILINE)
# The bounds keep a loop of "answer is" from being read to its end at each of them.
_SAID_TERM = re.compile(rf"(?i:{_ANSWER_IS}((?:[ \d+*/^()-]|\b[a-z]\b){{1,80}}=[^\n]{{1,80}}))")

# A letter by itself, not the start of a word or a sentence: "D-glucose", "A careful look".
_LETTER = (
    r"\(?\b([A-D])\b(?![-'+])"
    r"(?!\s+(?!(?:because|since|as|is|was|due|with|which|by|from)\b)[a-z])"
)
_SAID_LETTER = re.compile(
    rf"(?i:\b(?:answer|choice|option){_IS}[^\w\n(]*"
    rf"{_HENCE}(?:(?:option|choice|letter)\s*)?){_LETTER}"
    rf"|{_LETTER}\)?\s+is\s+(?:the\s+)?(?:correct|right|best)\b(?!\s+(?:only|if|when|for)\b)"
)
_BOXED_LETTER = re.compile(r"\s*\(?([A-D])(?:\s*$|[).:,])")
# "**B**: ..." goes through the choices, "**B**." chooses.
_BOLD_LETTER = re.compile(r"\*\*\s*\(?([A-D])\)?\.?\s*\*\*(?!\s*[:)-])")
# "B", or a choice written out in bold: "**B. 5 eV**".
_LINE_LETTER = re.compile(r"\W*\b([A-D])(?:\b|[.)] [^*]*\*\*)\W*")

_SAID_TEXT = re.compile(r"(?i)\banswer[*_`]*\s*:[ \t]*(\S[^\n]*)")


def extract(kind: Kind, text: str) -> str | None:
    r"""Return the answer that an output gives, None if it gives none that is valid.

    Where the output ends its thinking (`</think>`), what follows counts if there is an answer in
    it. By kind:

    - integer: "0" to "999" without leading zeros, as in AIME; from the last complete `\boxed{...}`,
      without one from the last "Answer: N" or "answer is N", or N alone below "Answer".
    - letter: "A" to "D"; from the last "Answer: (B)", "the answer is B", "B is correct" or
      `\boxed{B}`, without one from the last `**B**`, or a last line that is the letter or the
      choice in bold.
    - text: the rest of the line after the last "Answer:", without one the last `\boxed{...}`.
    """
    read = _READERS[kind]
    _, ended, said = text.rpartition("</think>")
    answer = read(said) if ended else None
    return read(text) if answer is None else answer


def correct(item: Item, text: str) -> bool | None:
    """Return whether an output gives the item's answer; None if the item has none."""
    if item.answer is None or item.kind is None:
        return None
    found = extract(item.kind, text)
    return found is not None and _comparable(found) == _comparable(item.answer)


def as_integer(text: str) -> str | None:
    r"""Return "0" to "999" for an integer in a usual form, like `m+n = \mathbf{073}`, or None."""
    plain = _THOUSANDS.sub("", _plain(_DEGREES.sub("", _UNIT.sub("", text))))
    found = _INTEGER.fullmatch(plain.rpartition("=")[2])
    return str(int(found[1])) if found else None


def _integer(text: str) -> str | None:
    boxes = _boxes(text)
    if boxes:
        return as_integer(boxes[-1])
    plain = _plain(text)
    forms = (_SAID_NUMBER, _SAID_TERM, _HEADED_NUMBER)
    said = [found for form in forms for found in form.finditer(plain)]
    last = max(said, key=re.Match.start, default=None)
    return as_integer(last[1].rstrip(" .,;")) if last else None


def _letter(text: str) -> str | None:
    with_boxes_said = _BOX.sub(_say_letter, text)
    said = [found[1] or found[2] for found in _SAID_LETTER.finditer(_plain(with_boxes_said))]
    bold = _BOLD_LETTER.findall(text)
    if said or bold:
        return (said or bold)[-1]
    *_, last_line = text.strip().rsplit("\n", 1)
    alone = _LINE_LETTER.fullmatch(last_line)
    return alone[1] if alone else None


def _say_letter(box: re.Match[str]) -> str:
    found = _BOXED_LETTER.match(_plain(box[1]))
    return f" answer: {found[1]}\n" if found else box[1]


def _text(text: str) -> str | None:
    said = _SAID_TEXT.findall(text) or _boxes(text)
    if not said:
        return None
    answer = _plain(_BOX.sub(r"\1", said[-1])).strip()
    return answer or None


def _boxes(text: str) -> list[str]:
    """The contents of the complete boxes; an empty one is a mention of the form."""
    return [inside for inside in _BOX.findall(text) if inside.strip()]


def _plain(text: str) -> str:
    """Take the markup of Markdown and LaTeX away, as far as answers have any."""
    return _MARKUP.sub("", text)


def _comparable(answer: str) -> str:
    return " ".join(_plain(answer).split()).removesuffix(".").casefold()


_READERS: dict[Kind, Callable[[str], str | None]] = {
    "integer": _integer,
    "letter": _letter,
    "text": _text,
}
