"""The command line: measure, print the tables, draw."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.common import provenance, versions, write_result
from bench.harm import corpora, result
from bench.harm.chart import draw
from bench.harm.penalties import (
    BUFFER,
    DRY_ALLOWED_LENGTH,
    DRY_BASE,
    DRY_BREAKERS,
    DRY_MULTIPLIER,
    LZ_PENALTY,
    MOST_NATS,
    WINDOW,
    penalties,
)
from bench.harm.vocabulary import Vocabulary
from bench.published import BOTH, SOURCES

LONGEST = (4096, 1024)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.harm", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write, a picture beside it")
    parser.add_argument("--kind", nargs="+", choices=corpora.KINDS, help="default: all")
    parser.add_argument("--tokenizer", nargs="+", choices=BOTH, default=list(BOTH))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(corpora.texts(arguments.kind), arguments.tokenizer)
    if arguments.out:
        write_result(arguments.out, found)
        draw(found, arguments.out.with_suffix(".png"))
    print(result.markdown(found))


def measure(texts: Sequence[corpora.Text], tokenizers: Iterable[str]) -> dict[str, Any]:
    """Return the result of every penalty on every text, as the result file holds it."""
    found: dict[str, Any] = {
        "measures": (
            "what penalties take from the true next token of text that is right, teacher-forced: "
            "positions in 1,000 where it is lowered, mean nats over all positions, texts in which "
            "any position is lowered"
        ),
        **provenance("bench.harm"),
        **versions("torch", "numba", "tokenizers"),
        "settings": {
            "longest": list(LONGEST),
            "lz": {"penalty": LZ_PENALTY, "window": WINDOW, "buffer": BUFFER, "cost": "marginal"},
            "dry": {
                "multiplier": DRY_MULTIPLIER,
                "base": DRY_BASE,
                "allowed_length": DRY_ALLOWED_LENGTH,
                "breakers": list(DRY_BREAKERS),
                "range": "the whole output",
            },
            "most nats": MOST_NATS,
        },
        "corpora": _described(texts),
        "vocabularies": {},
        "row_columns": result.ROW_COLUMNS,
        "rows": [],
        "reached_columns": result.REACHED_COLUMNS,
        "reached": [],
    }
    for name in tokenizers:
        vocabulary = Vocabulary(name)
        source = SOURCES[name]
        found["vocabularies"][name] = {"V": source.size, "models": source.models}
        is_breaker = vocabulary.holding(DRY_BREAKERS)
        for longest in LONGEST:
            pieces = corpora.pieces(texts, vocabulary, longest)
            tokens = [piece.tokens for piece in pieces]
            for penalty in penalties(is_breaker, vocabulary.numbers()):
                print(f"{name}, {longest}: {penalty.name}", file=sys.stderr, flush=True)
                outcomes = penalty.outcomes(tokens, vocabulary.size)
                for key in ("rows", "reached"):
                    rows = getattr(result, key)(pieces, outcomes, penalty)
                    found[key] += [[name, longest, *row] for row in rows]
    return found


def _described(texts: Sequence[corpora.Text]) -> dict[str, Any]:
    """The size and digest of each kind, and its texts with their sizes in characters."""
    kinds: dict[str, list[corpora.Text]] = {}
    for text in texts:
        kinds.setdefault(text.kind, []).append(text)
    return {
        kind: {
            "characters": sum(len(text.text) for text in own),
            "sha256": corpora.digest(own),
            "texts": [[text.name, len(text.text)] for text in own],
        }
        for kind, own in kinds.items()
    }
