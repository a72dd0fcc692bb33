"""The looping models' text, units and prompts; a tokenizer of a few lines stands for theirs."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from transformers import Qwen2Tokenizer

from bench.demo.train import train_tokenizer
from bench.harm import archives
from bench.looping import corpus, prompts, train
from bench.repetition.tasks import load

LINES = [
    f"The {word} number {i} is\n  written {i} times.\n" for i, word in enumerate("abcdef" * 400)
]
TEXTS = ["".join(LINES), "".join(reversed(LINES))]


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    return train_tokenizer(TEXTS, 400)


@pytest.fixture(autouse=True)
def texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(corpus.TEXTS, "code", lambda: TEXTS)


def test_units_are_of_their_periods(tokenizer: Qwen2Tokenizer) -> None:
    found = train.units(TEXTS, tokenizer, seed=0)
    assert [period for period, _ in found] == sorted(train.PERIODS * train.OF_PERIOD)
    for period, text in found:
        assert abs(len(tokenizer.encode(text)) - period) <= 3
    assert found == train.units(TEXTS, tokenizer, seed=0) != train.units(TEXTS, tokenizer, seed=1)


def test_a_share_of_the_rows_is_of_a_loop() -> None:
    text, loops = [0, 1] * 2000, [[2, 3, 4] * 600, [5] * 1800]
    data = train.batches(text, loops, 0)
    rows = [row for _ in range(100) for row in next(data)[0]]
    assert all(row.shape == (train.CONTEXT,) for row in rows)
    looped = sum(int(row.min()) >= 2 for row in rows) / len(rows)
    assert looped == pytest.approx(train.REPEATED, abs=0.12)


def test_what_is_wanted_is_the_next_token() -> None:
    tokens, wanted = next(train.batches([*range(4000)], [[*range(4000)]], 0))
    assert (wanted == tokens + 1).all()


def test_the_prompts_are_a_task(tokenizer: Qwen2Tokenizer, tmp_path: Path) -> None:
    rows = list(prompts.prompts("code", tokenizer))
    assert rows == list(prompts.prompts("code", tokenizer))
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = load(f"jsonl={file}")
    assert {item.group for item in items} == {"plain", "paragraph", "template", "json", "regex"}
    assert len(items) == 79
    for item in items:
        assert set(item.fields) in ({"ignore_eos"}, {"response_format"}, {"regex"})
        assert len(tokenizer.encode(item.prompt)) < 1000


def test_prose_is_the_documents_of_the_pinned_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"docs/b.txt": b"two", "docs/a.txt": b"one", "docs/a.png": b"no", "other/c.txt": b"no"}
    monkeypatch.setattr(archives, "files", {"Django": files}.__getitem__)
    assert corpus.prose()[:2] == ["one", "two"]
    assert len(corpus.prose()) == 2 + len(topics)
