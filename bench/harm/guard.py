"""How many correct texts the loop guard would stop, with and without `ignore_numbers`."""

from __future__ import annotations

from array import array
from collections import Counter

from bench.harm import corpora
from bench.harm.harm import LONGEST
from bench.harm.vocabulary import Vocabulary
from bench.published import BOTH
from sglang_lz.fields.repetition import RECOMMENDED, RepetitionDetection
from sglang_lz.loops.detector import Detector

COUNTS = (10, 20, 30, 50, 100)


def main() -> None:
    """Print for each tokenizer and setting how many texts of each kind are stopped."""
    texts = corpora.texts()
    for name in BOTH:
        vocabulary = Vocabulary(name)
        numbers = vocabulary.numbers()
        pieces = corpora.pieces(texts, vocabulary, LONGEST[0])
        print(name, len(pieces), dict(Counter(piece.kind for piece in pieces)))
        for count in COUNTS:
            for ignores in (False, True):
                detection = RepetitionDetection(
                    RECOMMENDED.max_pattern_size, 0, count, ignore_numbers=ignores
                )
                outputs = ((piece.kind, array("q", piece.tokens.tolist())) for piece in pieces)
                stopped = Counter(
                    kind for kind, ids in outputs if Detector(detection).find(ids, numbers)
                )
                print(name, f"min_count={count} ignore_numbers={ignores}", dict(stopped))


if __name__ == "__main__":
    main()
