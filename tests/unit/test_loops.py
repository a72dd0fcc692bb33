"""`sglang-lz loops`: what it reads, what it counts, what it says of bad files."""

from __future__ import annotations

import io
import json
from array import array
from pathlib import Path

import pytest

from sglang_lz.distribution.cli import main
from sglang_lz.repetition import RECOMMENDED, Loop, RepetitionDetection, loops

LOOP = [7, *([1, 2, 3] * 25), 1, 9]
FINE = list(range(50))


def test_all_loops_of_an_output_in_their_whole_length() -> None:
    output = array("q", [*LOOP, *FINE, *([5] * 30)])
    first = Loop(pattern_size=3, begin=1, end=77)
    assert first.count == 25
    assert list(loops(output, RECOMMENDED)) == [first, Loop(1, len(LOOP) + 50, len(output))]
    assert list(loops(array("q", FINE), RepetitionDetection(8, 0, 2))) == []


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["loops", "--json", *arguments]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_records_of_all_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "so it goes, " * 30
    records = [
        {"output_ids": LOOP, "text": "nothing"},
        {"text": text},
        "a plain string",
        [{"text": text, "meta_info": {}}, {"text": "fine"}],
        {"choices": [{"message": {"content": "fine", "reasoning_content": text}}]},
        {"choices": [{"text": text}, {"text": "fine", "token_ids": LOOP}]},
        {"choices": [{"message": {"content": None, "reasoning_content": "thought"}}]},
        {"content": [{"type": "thinking", "thinking": "fine"}, {"type": "text", "text": text}]},
        {"response": {"body": {"choices": [{"message": {"content": text}}]}}},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    found = report(capsys, str(file))
    assert found["outputs"] == 11
    assert found["outputs_with_a_loop"] == 8
    # The thoughts' loop is followed by the answer, LOOP's by two more tokens.
    assert found["outputs_that_end_in_one"] == 5
    assert {p["pattern_size"] for p in found["patterns"]} == {3, 7}  # type: ignore[attr-defined]


def test_other_files_are_one_text_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log.txt"
    file.write_text("a word\n" + "again " * 40)
    found = report(capsys, str(file), "--min-count", "12", "--max-pattern-size", "2")
    assert found["outputs_that_end_in_one"] == 1
    assert main(["loops", str(file)]) == 0
    said = capsys.readouterr().out
    assert "with a loop" in said
    assert '"lz_onset": 3' in said
    assert "again" not in said  # nothing of the text


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        ("=" * 80 + "\n" + " " * 24 + "if", False),
        ("=" * 400, True),
        ("a" * 400, True),
        ("\u518d\u89c1" * 40, True),
        (" \n" * 40, True),
        ("one two three " * 19, False),
    ],
)
def test_pieces_of_a_text_stand_for_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, looping: bool
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(text)))
    assert report(capsys, "-")["outputs_with_a_loop"] == looping


def test_outputs_without_loops_need_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"tokens": FINE})))
    assert main(["loops", "-"]) == 0
    assert "needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is no JSON"),
        ('{"prompt": "a"}', "line 2 holds no output"),
        ("3", "line 2 holds no output"),
        ('{"tokens": [9223372036854775808]}', "line 2 holds token ids below 0 or above"),
        ('{"content": [1]}', "line 2 holds no output"),
        ('{"choices": [1]}', "line 2 holds no output"),
    ],
)
def test_a_bad_record_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f'{{"text": "a"}}\n{line}\n')
    assert main(["loops", str(file)]) == 2
    printed = capsys.readouterr()
    assert f"{file}, {message}" in printed.err
    assert printed.out == ""


def test_a_bad_setting_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["loops", "--min-count", "1", "x"]) == 2
    assert "min_count must be an integer in [2, 32767], got 1" in capsys.readouterr().err
    assert main(["loops", "--max-pattern-size", "0", "x"]) == 2
    assert main(["loops", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be used" in capsys.readouterr().err
