"""What bench.harm says of penalties, against the oracle and plain definitions, on small texts."""

from __future__ import annotations

import base64
import io
import math
import random
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import oracle
from bench.harm import archives, corpora, penalties, result
from bench.harm.corpora import Piece, Text
from bench.harm.penalties import LZ_PENALTY, Onset, Outcome, Penalty
from bench.harm.vocabulary import Vocabulary
from bench.published import QWEN, SOURCES, Source

ROOT = Path(__file__).parents[2]
VOCAB = 24


def looping_text(seed: int, length: int) -> list[int]:
    """Random tokens, with units that stand several times in a row."""
    rng = random.Random(seed)
    text: list[int] = []
    while len(text) < length:
        unit = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
        text += unit * rng.choice((1, 1, 2, 4, 9))
    return text[:length]


def as_tokens(texts: Sequence[Sequence[int]]) -> list[penalties.Tokens]:
    return [np.array(text, dtype=np.int64) for text in texts]


@pytest.mark.parametrize("onset", [0, 3])
def test_lz_lowers_what_the_oracle_lowers(onset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalties, "ROWS", 3)  # several batches
    texts = [looping_text(seed, length) for seed, length in enumerate((40, 70, 1, 60, 70))]
    outcomes = penalties.lz_outcomes(as_tokens(texts), VOCAB, onset)
    assert any(outcome.lowered.any() for outcome in outcomes)
    for text, outcome in zip(texts, outcomes, strict=True):
        expected, reached = [], []
        memory = oracle.memory_of_steps([], text, False, 512, onset)
        for position, token in enumerate(text):
            seen = text[:position]
            if onset and oracle.looped_tokens(tuple(seen), 512, onset):
                reached.append(position)
            delta = oracle.delta_bits(
                seen, VOCAB, 512, 32, "marginal", onset=onset, memory=memory[position]
            )
            expected.append(LZ_PENALTY * (math.log2(VOCAB) - delta[token]))
        capped = np.minimum(expected, penalties.MOST_NATS)
        np.testing.assert_allclose(outcome.lowered, capped, atol=1e-4)
        assert (outcome.onset and outcome.onset.position) == next(iter(reached), None)


def test_lz_names_the_shortest_period_that_reached_the_onset() -> None:
    line = list(range(20))
    texts = as_tokens([line * 3 + [1], [5, 6] * 30, line * 2 + [1]])
    onsets = [outcome.onset for outcome in penalties.lz_outcomes(texts, VOCAB, onset=2)]
    assert onsets == [Onset(60, 20), Onset(26, 2), None]


def test_dry_lowers_what_would_make_a_repetition_longer() -> None:
    breaker = VOCAB - 1
    is_breaker = np.arange(VOCAB) == breaker

    def lowered(*text: int) -> list[float]:
        return penalties.dry_lowered(np.array(text), is_breaker).tolist()

    assert lowered(1, 2, 3, 9, 1, 2, 3) == [0, 0, 0, 0, 0, 0, 0.8]
    assert lowered(1, 2, 3, 4, 9, 1, 2, 3, 4)[-2:] == pytest.approx([0.8, 0.8 * 1.75])
    assert lowered(1, breaker, 3, 9, 1, breaker, 3)[-1] == 0
    assert lowered(1, 2, breaker, 9, 1, 2, breaker)[-1] == 0
    # Repetitions may overlap; the longest counts.
    assert lowered(4, 4, 4, 4) == [0, 0, 0, 0.8]
    assert lowered(1, 2, 3, 7, 9, 8, 2, 3, 7, 9, 1, 2, 3, 7)[-1] == pytest.approx(0.8 * 1.75)


def test_count_penalties_lower_what_stood_there() -> None:
    by_name = {p.name: p for p in penalties.penalties(np.zeros(VOCAB, dtype=bool))}
    (text,) = texts = as_tokens([[3, 1, 3, 3, 2, 1]])
    assert penalties.earlier_occurrences(text, VOCAB).tolist() == [0, 0, 1, 2, 0, 1]

    def lowered(name: str) -> list[float]:
        return by_name[name].outcomes(texts, VOCAB)[0].lowered.tolist()

    assert lowered("frequency 0.5") == [0, 0, 0.5, 1, 0, 0.5]
    assert lowered("presence 0.5") == [0, 0, 0.5, 0.5, 0, 0.5]
    assert lowered("repetition 1.1") == lowered("repetition 1.2") == [0, 0, 1, 1, 0, 1]
    assert not by_name["repetition 1.1"].has_nats


def tiny_ranks() -> bytes:
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"ab", b"bc", b"abc", b" a", b"12", b"==", b"====", b":\n"]
    lines = (f"{base64.b64encode(t).decode()} {n}" for n, t in enumerate(tokens))
    return "\n".join(lines).encode()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Vocabulary:
    monkeypatch.setitem(SOURCES, "tiny", Source("some", "ranks", "none", 300, QWEN))
    monkeypatch.setattr(archives, "files", lambda _: {"ranks": tiny_ranks()})
    return Vocabulary("tiny")


def test_a_vocabulary_knows_which_tokens_hold_a_breaker(tiny: Vocabulary) -> None:
    found = np.flatnonzero(tiny.holding(["\n", ":"])).tolist()
    assert found == [ord("\n"), ord(":"), 263]
    assert len(tiny.holding(["\n"])) == tiny.size


def test_texts_are_cut_to_outputs(tiny: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "TEXT_TOKENS", 250)
    texts = [Text("prose", "long", "a" * 1000), Text("logs", "short", "b" * 63)]
    pieces = corpora.pieces(texts, tiny, 100)
    assert [(piece.kind, piece.name, len(piece.tokens)) for piece in pieces] == [
        ("prose", "long:0", 100),
        ("prose", "long:100", 100),
    ]
    (whole,) = corpora.pieces(texts, tiny, 4096)
    assert len(whole.tokens) == 250


def test_texts_are_the_same_each_time() -> None:
    kinds = ("documentation", "logs", "diagrams")
    texts = corpora.texts(kinds)
    assert {text.kind for text in texts} == set(kinds)
    assert corpora.digest(texts) == corpora.digest(corpora.texts(kinds))
    assert corpora.digest(texts) != corpora.digest(texts[1:])
    assert len({(text.kind, text.name) for text in texts}) == len(texts)
    assert max(len(text.text) for text in texts) <= corpora.TEXT_CHARACTERS


def test_archives_are_read_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archives.files.cache_clear()
    monkeypatch.setattr(archives, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(archives, "REQUIREMENTS", tmp_path / "pins")
    archives.REQUIREMENTS.write_text("wheeled==1.0\nSourced==1.0\n")
    asked = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        asked.append(Path(command[-1]).read_text())
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir()
        if asked[-1] == "wheeled==1.0":
            with zipfile.ZipFile(folder / "wheeled-1.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr("wheeled/data.txt", "in a wheel")
            return subprocess.CompletedProcess(command, 0)
        with tarfile.open(folder / "Sourced-1.0.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("Sourced-1.0/data.txt")
            member.size = 9
            archive.addfile(member, io.BytesIO(b"in a tar!"))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    for _ in range(2):
        assert archives.files("wheeled") == {"wheeled/data.txt": b"in a wheel"}
        assert archives.files("sourced") == {"data.txt": b"in a tar!"}
        archives.files.cache_clear()
    assert asked == ["wheeled==1.0", "Sourced==1.0"]


def outcome(*lowered: float, onset: Onset | None = None) -> Outcome:
    return Outcome(np.array(lowered, dtype=np.float32), onset)


def test_rows_say_how_much_of_each_kind_is_lowered() -> None:
    pieces = [
        Piece(kind, name, np.zeros(4, dtype=np.int64))
        for kind, name in (("prose", "a:0"), ("JSON", "b:0"), ("prose", "c:0"))
    ]
    outcomes = [outcome(0, 0, 0, 0), outcome(0, 1, 2, 3, onset=Onset(1, 7)), outcome(0, 0, 0, 2)]
    penalty = Penalty("some", True, lambda texts, vocab: [])
    assert result.rows(pieces, outcomes, penalty) == [
        ["prose", "some", 2, 8, 125.0, 0.25, 1, 0],
        ["JSON", "some", 1, 4, 750.0, 1.5, 1, 1],
    ]
    assert result.reached(pieces, outcomes, penalty) == [["some", "JSON", "b:0", 4, 1, 7, 3]]
    by_logit = Penalty("some", False, lambda texts, vocab: [])
    assert [row[5] for row in result.rows(pieces, outcomes, by_logit)] == [None, None]


def test_only_nothing_is_shown_as_nothing() -> None:
    row = ["qwen", 4096, "prose"]
    nothing = [[*row, name, 1, 9, 0.0, 0.0, 0, 0] for name in (result.COUNTING, "DRY")]
    little = [[*row, "lz 0.15", 1, 9, 0.04, 0.0004, 1, 0]]
    shown = result.markdown(
        {
            "settings": {"longest": [1024, 4096]},
            "vocabularies": {"qwen": {}},
            "row_columns": result.ROW_COLUMNS,
            "rows": nothing + little,
        }
    )
    assert "| lowered per 1000 | count penalties | DRY | lz 0.15 |" in shown
    assert "| prose | 0 | 0 | < 0.1 |" in shown
