"""Tasks from files in the form of the public datasets; all problems here are made up."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.repetition import answers, tasks
from bench.repetition.items import Item
from bench.repetition.tasks import load

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# The columns of Maxwell-Jia/AIME_2024, HuggingFaceH4/aime_2024 and opencompass/AIME2025.
AIME_UPPER = [
    {"ID": "2024-I-1", "Problem": "What is $2+2$?", "Solution": "Add.", "Answer": 4},
    {"ID": "2024-II-15", "Problem": "What is {7}^2?", "Solution": "Multiply.", "Answer": 49},
]
AIME_LOWER = [
    {
        "id": 60,
        "problem": "What is $2+2$?",
        "solution": "Add.",
        "answer": "004",
        "url": "https://example.org/1",
        "year": "2024",
    }
]
AIME_2025 = [
    {"question": "What is $8\\cdot 9$?", "answer": "72"},
    {"question": "What is a third of a full turn?", "answer": "120^\\circ"},
]
GPQA = [
    {
        "Question": f"Which number is {i}?\n",
        "Correct Answer": f"{i}\n",
        "Incorrect Answer 1": f"{i}, more or less",
        "Incorrect Answer 2": f"-{i}",
        "Incorrect Answer 3": f"{i}.5",
        "Explanation": "Count.",
        "High-level domain": "Physics",
        "Record ID": f"rec{i}",
    }
    for i in range(40)
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_aime_2024_in_every_format(tmp_path: Path, suffix: str) -> None:
    first, second = load(f"aime2024={written(tmp_path / f'aime{suffix}', AIME_UPPER)}")
    assert first.id == "aime2024/2024-I-1"
    assert "What is $2+2$?" in first.prompt
    assert "\\boxed{}" in first.prompt
    assert (first.answer, first.kind, first.group) == ("4", "integer", "AIME 2024")
    assert "What is {7}^2?" in second.prompt


def test_aime_answers_are_integers_without_leading_zeros(tmp_path: Path) -> None:
    (item,) = load(f"aime2024={written(tmp_path / 'aime.jsonl', AIME_LOWER)}")
    assert (item.id, item.answer) == ("aime2024/60", "4")
    assert answers.correct(item, "It is \\boxed{4}.")


def test_aime_2025_without_ids_from_two_files(tmp_path: Path) -> None:
    spec = f"aime2025={written(tmp_path / 'aime2025-I.jsonl', AIME_2025)}"
    other = f"aime2025={written(tmp_path / 'aime2025-II.jsonl', AIME_2025)}"
    items = [*load(spec), *load(other)]
    assert [item.answer for item in items] == ["72", "120"] * 2
    assert [item.id for item in items] == [
        "aime2025/aime2025-I-1",
        "aime2025/aime2025-I-2",
        "aime2025/aime2025-II-1",
        "aime2025/aime2025-II-2",
    ]
    assert {item.group for item in items} == {"AIME 2025"}


def test_the_unnamed_index_of_pandas_is_a_column(tmp_path: Path) -> None:
    path = tmp_path / "aime.csv"
    path.write_text(",Problem,Answer\n0,?,5\n")
    (item,) = load(f"aime2024={path}")
    assert item.answer == "5"


def test_another_year_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "aime.csv", AIME_LOWER)
    with pytest.raises(ValueError, match=r"aime\.csv, row 1: 'year' is 2024, not 2025"):
        load(f"aime2025={path}")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_gpqa_choices_are_shuffled_once_for_all(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"gpqa_diamond{suffix}", GPQA)
    items = load(f"gpqa={path}")
    assert [item.id for item in items] == [f"gpqa/rec{i}" for i in range(40)]
    assert {item.group for item in items} == {"Physics"}
    for i, item in enumerate(items):
        choices = [line for line in item.prompt.splitlines() if line.startswith("(")]
        assert f"({item.answer}) {i}" in choices
        assert [choice[:3] for choice in choices] == ["(A)", "(B)", "(C)", "(D)"]
        assert {choice[4:] for choice in choices} == {
            f"{i}",
            f"{i}, more or less",
            f"-{i}",
            f"{i}.5",
        }
        assert answers.correct(item, f"Answer: ({item.answer})")
    counts = [sum(item.answer == letter for item in items) for letter in "ABCD"]
    assert min(counts) >= 4
    reordered = load(f"gpqa={written(tmp_path / f'other{suffix}', GPQA[::-1])}")
    assert sorted(reordered, key=lambda item: item.id) == sorted(items, key=lambda item: item.id)


def test_prompts_with_and_without_answers(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"prompt": "Sort 3 1 2", "answer": "1 2 3", "id": "a", "group": "sort", "level": 3}\n'
        "\n"
        '{"prompt": "Tell a story.", "answer": null}\n'
        '{"prompt": "1+1?", "answer": 2, "fields": {"regex": "[0-9]"}}\n'
    )
    assert load(f"jsonl={path}") == [
        Item("jsonl/a", "Sort 3 1 2", "1 2 3", "text", "sort", "3"),
        Item("jsonl/mine-3", "Tell a story.", None, None),
        Item("jsonl/mine-4", "1+1?", "2", "text", fields={"regex": "[0-9]"}),
    ]


def test_limit_takes_the_first(tmp_path: Path) -> None:
    path = written(tmp_path / "gpqa.csv", GPQA)
    assert load(f"gpqa={path}", 3) == load(f"gpqa={path}")[:3]
    assert len(load(f"gpqa={path}", 100)) == 40


def test_pocket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "pocket.jsonl", [{"id": "sort-1", "prompt": "2 1", "answer": "1 2"}])
    monkeypatch.setattr(tasks, "POCKET", path)
    assert load("pocket") == [Item("pocket/sort-1", "2 1", "1 2", "text")]


@pytest.mark.parametrize(
    ("task", "name", "content", "message"),
    [
        ("aime2024", "x.jsonl", '{"problem": "?"}\n', "row 1: 'answer' is missing or empty"),
        ("aime2024", "x.jsonl", '{"answer": 1}\n', "row 1: 'problem' or 'question' is missing"),
        ("aime2024", "x.csv", "problem,answer\n?,1\n?,1000\n", "row 2: 'answer' is no integer"),
        ("aime2024", "x.csv", "problem,answer\n?,1,2\n", "row 1: more fields than the header"),
        ("aime2024", "x.csv", 'problem,answer\n"?"x,1\n', "x.csv: "),
        ("gpqa", "x.csv", "Question,Correct Answer\n?,1\n", "row 1: 'incorrect answer 1' is"),
        ("jsonl", "x.jsonl", '{"prompt": "?"}\n{"prompt": \n', "row 2: not JSON"),
        pytest.param("jsonl", "x.jsonl", "[" * 100_000, "row 1: not JSON: ", id="deep"),
        ("jsonl", "x.jsonl", '["?"]\n', "row 1: not a JSON object"),
        ("jsonl", "x.jsonl", '{"prompt": ["?"]}\n', "row 1: 'prompt' is neither text nor"),
        ("jsonl", "x.jsonl", '{"prompt": " "}\n', "row 1: 'prompt' is missing or empty"),
        ("jsonl", "x.jsonl", '{"prompt": "?", "id": 1}\n' * 2, "2 rows with the id 'jsonl/1'"),
        ("jsonl", "x.jsonl", '{"prompt": "?", "fields": "x"}\n', "row 1: 'fields' is no object"),
        ("jsonl", "x.jsonl", '{"prompt": "?", "fields": {"seed": 1}}\n', "must leave out seed"),
        ("jsonl", "x.jsonl", "\n", "has no row"),
        ("jsonl", "x.parquet", "no parquet", "x.parquet: "),
        ("jsonl", "x.txt", "", "none of .jsonl, .csv, .parquet"),
    ],
)
def test_a_bad_file_is_named_with_row_and_field(
    tmp_path: Path, task: str, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="x") as error:
        load(f"{task}={tmp_path / name}")
    assert message in str(error.value)
    assert str(tmp_path / name) in str(error.value)


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl: "):
        load(f"jsonl={tmp_path / 'x.jsonl'}")


@pytest.mark.parametrize("spec", ["aime2023=x.csv", "gpqa", "gpqa=", "pocket=x.jsonl", ""])
def test_what_is_no_task(spec: str) -> None:
    with pytest.raises(ValueError, match="is no task; a task is pocket, aime2024=SOURCE"):
        load(spec)


class Hub:
    """Stands in for the hub: one local file is every file, and what was asked for is kept."""

    def __init__(self, path: Path, files: list[str]) -> None:
        self.path, self.files, self.asked = path, files, []

    def hf_hub_download(self, repo_id: str, filename: str, **options: str) -> str:
        self.asked.append((repo_id, filename, options))
        return str(self.path)

    def list_repo_files(self, repo_id: str, **options: str) -> list[str]:
        self.asked.append((repo_id, options))
        return self.files


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(written(tmp_path / "downloaded.jsonl", AIME_UPPER), ["README.md", "aime.jsonl"])
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    return hub


PINNED = {"repo_type": "dataset", "revision": COMMIT}


def test_a_file_of_the_hub_at_its_commit(hub: Hub) -> None:
    items = load(f"aime2024=hub:someone/aime@{COMMIT}:data/train.jsonl", 1)
    assert [item.id for item in items] == ["aime2024/2024-I-1"]
    assert hub.asked == [("someone/aime", "data/train.jsonl", PINNED)]


def test_the_only_data_file_of_a_dataset_needs_no_name(hub: Hub) -> None:
    assert len(load(f"aime2024=hub:someone/aime@{COMMIT}")) == 2
    assert hub.asked == [("someone/aime", PINNED), ("someone/aime", "aime.jsonl", PINNED)]


def test_several_data_files_are_listed(hub: Hub) -> None:
    hub.files.append("more.csv")
    with pytest.raises(ValueError, match=r"after a colon: aime\.jsonl, more\.csv"):
        load(f"aime2024=hub:someone/aime@{COMMIT}")


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:12], ""])
def test_what_is_no_commit_is_refused(hub: Hub, revision: str) -> None:
    with pytest.raises(ValueError, match=f"'{revision}' is not a commit of 40 hexadecimal"):
        load(f"aime2024=hub:someone/aime@{revision}")
    assert not hub.asked


@pytest.mark.parametrize("source", ["hub:aime", f"hub:aime@{COMMIT}", "hub:someone/aime"])
def test_a_hub_source_of_another_form_is_refused(hub: Hub, source: str) -> None:
    with pytest.raises(ValueError, match="not of the form hub:OWNER/NAME@COMMIT"):
        load(f"aime2024={source}")
    assert not hub.asked


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("no network"), FileNotFoundError("no network")]
)
def test_a_hub_that_cannot_be_had_is_an_error_that_names_the_source(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: str, **options: str) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    source = f"hub:someone/aime@{COMMIT}:x.csv"
    with pytest.raises(OSError, match=f"'{source}': no network"):
        load(f"aime2024={source}")
