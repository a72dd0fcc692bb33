r"""Read the answer or the code off an output.

The last answer counts: the rest of the line after "Answer:", without one the last complete
`\boxed{...}`. No sentence is searched for a value that it might mean.
"""

from __future__ import annotations

import re
import textwrap

from bench.models.items import Item

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
