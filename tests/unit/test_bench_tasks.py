"""Tasks from files of JSON lines; all problems here are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.models.grid import Item
from bench.models.tasks import load


def test_prompts_with_and_without_answers(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"prompt": "Sort 3 1 2", "answer": "1 2 3", "id": "a", "group": "sort", "level": 3}\n'
        "\n"
        '{"prompt": "Tell a story.", "answer": null}\n'
        '{"prompt": "1+1?", "answer": 2, "fields": {"regex": "[0-9]"}}\n'
    )
    assert load(f"jsonl={path}") == [
        Item("jsonl/a", "Sort 3 1 2", "1 2 3", "sort", "3"),
        Item("jsonl/mine-3", "Tell a story.", None),
        Item("jsonl/mine-4", "1+1?", "2", fields={"regex": "[0-9]"}),
    ]
    assert load(f"jsonl={path}", 1) == load(f"jsonl={path}")[:1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "?"}\n{"prompt": \n', "row 2: Expecting value"),
        ('{"prompt": " "}\n', "row 1: 'prompt' is missing or empty"),
        ('{"prompt": "?", "id": 1}\n' * 2, "2 rows with the id 'jsonl/1'"),
        ('{"prompt": "?", "fields": {"seed": 1}}\n', "must leave out seed"),
    ],
)
def test_a_bad_file_is_named_with_row_and_field(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"x\.jsonl") as error:
        load(f"jsonl={path}")
    assert message in str(error.value)
