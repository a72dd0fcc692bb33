"""Whether a codelength tells templated loops: `python -m bench.onset templates`.

In a templated loop a counter or a name changes each time round, so that no run grows long. An LZ77
compressor codes such text cheaply nevertheless. This asks whether the bits a token over the newest
`SPANS` tokens, at their lowest in a text, tell it from text that is right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from bench.harm.corpora import Piece
from bench.harm.vocabulary import Vocabulary
from bench.onset import rule
from bench.onset.rule import LOG2, WINDOW, Floats, Tokens
from bench.onset.settings import SHIPPED

SPANS = (64, 128, 256, 512)
TOKENS = 1024
"""Of a templated loop; right text is cut to pieces as long."""
ROUNDS = 6
"""Loops of each template, with other names and another first number."""
ALLOWED = (0.0, 0.01, 0.05)
"""Shares of right texts that may be taken for loops."""

NAMES = (
    *("apple", "river", "table", "window", "garden", "engine", "letter", "mirror", "orange"),
    *("pencil", "silver", "ticket", "violet", "winter", "yellow", "anchor", "basket", "candle"),
)
TEMPLATES = {
    "short line": (
        "Step {i}: {name}\n",
        "{i}. {name}\n",
        "Question {i}: what is {name}?\n",
        "    '{name}': {i},\n",
        "assert f({i}) == {name}\n",
    ),
    "sentence": (
        "In step {i} we take the {name} and put it back where it was before we began.\n",
        "Wait, let me check case {i} again: if x is {i}, then the answer would be {name}.\n",
        "But {name} is not what was asked, so let us try once more with {i} in its place. ",
        "    def test_{name}_{i}(self):\n        self.assertEqual(self.{name}, {i})\n\n",
        "The {name} was in the house, and number {i} was the one that nobody had ever seen. ",
    ),
    "paragraph": (
        "Hmm, let me think about this differently. Suppose that the {name} is {i}. Then the first "
        "condition holds, but the second does not, because the sum would be too large. So this "
        "cannot be right, and we have to look at the next value instead.\n\n",
        "Chapter {i}\n\nIt was late in the evening when the {name} came back to the village. "
        "Nobody had expected it, and nobody said a word. The old man looked up from his book, "
        "shook his head, and went on reading as if nothing had happened at all.\n\n",
        'class Handler{i}(Base):\n    """Handle {name}."""\n\n    def run(self, request):\n'
        "        value = request.get('{name}')\n        if value is None:\n"
        "            raise ValueError('{name} is missing')\n        return self.store(value)\n\n\n",
    ),
}


@numba.njit(cache=True)
def bits(x: Tokens, vocab_size: int) -> Floats:
    """Bits of each token as a greedy LZ77 parse codes it, float64 [tokens].

    A phrase costs log2 of its distance and log2 of its length (SPEC section 2, `rate`), spread over
    its tokens, and never more than literals, log2 V each. A source lies in the window, and may
    overlap its phrase.
    """
    literal = np.log2(vocab_size)
    cost = np.empty(len(x))
    at = 0
    while at < len(x):
        longest, distance = 0, 1
        for d in range(1, min(at, WINDOW) + 1):
            length = 0
            while at + length < len(x) and x[at + length] == x[at + length - d]:
                length += 1
            if length > longest:
                longest, distance = length, d
        phrase = max(longest, 1)
        price = literal
        if longest:
            price = min((LOG2[distance] + np.log2(longest)) / longest, literal)
        cost[at : at + phrase] = price
        at += phrase
    return cost


def lowest(x: Tokens, vocab_size: int) -> list[float]:
    """The fewest bits a token over any span of a text, for each of SPANS; inf where none fits."""
    total = np.concatenate([[0.0], bits(x, vocab_size).cumsum()])
    return [
        float(((total[span:] - total[:-span]) / span).min()) if len(x) >= span else np.inf
        for span in SPANS
    ]


def loops(vocabulary: Vocabulary) -> list[tuple[str, Tokens]]:
    """Templated loops of TOKENS tokens, each with its kind."""
    rng = random.Random(0)
    found = []
    for kind, templates in TEMPLATES.items():
        for template in templates:
            for _ in range(ROUNDS):
                first = rng.choice((1, 17, 120))
                text = "".join(
                    template.format(i=first + i, name=rng.choice(NAMES)) for i in range(TOKENS)
                )
                found.append((kind, vocabulary.encode(text)[:TOKENS].astype(np.int32)))
    return found


def measure(pieces: Sequence[Piece], vocabulary: Vocabulary) -> dict[str, Any]:
    """Compare templated loops with right texts of at least half their length."""
    shipped = rule.table([SHIPPED])[0]
    kinds, right = _right(pieces, vocabulary.size)
    templated = loops(vocabulary)
    low = np.array([lowest(x, vocabulary.size) for _, x in templated])
    missed = np.array([rule.first_loop(x, shipped) < 0 for _, x in templated])
    plain = np.array([kind in ("prose", "documentation", "Python", "JSON") for kind in kinds])
    return {
        "spans": list(SPANS),
        "lowest_bits": {
            "columns": ["fewest", "1 % quantile", "median"],
            **{kind: _quantiles(right[kinds == kind]) for kind in dict.fromkeys(kinds.tolist())},
            **{
                f"templated, {kind}": _quantiles(low[[k == kind for k, _ in templated]])
                for kind in TEMPLATES
            },
        },
        "templated": len(templated),
        "templated_without_copies": int(missed.sum()),
        "right_texts": len(right),
        "caught_of_those_without_copies": {
            "all kinds": _caught(right, low[missed]),
            "prose, documentation, Python, JSON": _caught(right[plain], low[missed]),
        },
    }


def _right(pieces: Sequence[Piece], vocab_size: int) -> tuple[NDArray[np.str_], Floats]:
    kinds, found = [], []
    for piece in pieces:
        tokens = piece.tokens.astype(np.int32)
        for start in range(0, len(tokens), TOKENS):
            part = tokens[start : start + TOKENS]
            if len(part) >= TOKENS // 2:
                kinds.append(piece.kind)
                found.append(lowest(part, vocab_size))
    return np.array(kinds), np.array(found)


def _quantiles(values: Floats) -> list[list[float]]:
    """For each span: the fewest, the 1 % quantile and the median."""
    return np.quantile(values, [0, 0.01, 0.5], axis=0).T.round(3).tolist()


def _caught(right: Floats, low: Floats) -> list[dict[str, Any]]:
    """What a threshold catches that takes no more right texts for loops than is allowed."""
    found = []
    for share in ALLOWED:
        limits = np.quantile(right, share, axis=0, method="lower")
        found.append(
            {
                "false_alarms": share,
                "below_bits": limits.round(3).tolist(),
                "caught": (low < limits).mean(axis=0).round(3).tolist(),
            }
        )
    return found
