"""Records on disk: whole lines, one writer, the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.records import Lines, RecordError, read_lines, require_same, write


def test_a_line_that_was_cut_short_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "lines.jsonl"
    with Lines(file) as lines:
        assert lines.before == []
        lines.add({"a": "é"})
        assert read_lines(file) == [{"a": "é"}], "on disk at once"
    with file.open("a") as torn:
        torn.write('{"a": 2')
    assert read_lines(file) == [{"a": "é"}]
    with Lines(file) as lines:
        assert lines.before == [{"a": "é"}]
        lines.add({"a": 3})
    assert file.read_text() == '{"a": "é"}\n{"a": 3}\n'


def test_there_is_one_writer_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    with Lines(file), pytest.raises(RecordError, match="another process is writing"):
        Lines(file)
    with Lines(file):
        pass


def test_each_setting_that_differs_is_named(tmp_path: Path) -> None:
    before = {"tp": 1, "sizes": [1, 2], "gone": "x"}
    require_same(tmp_path, {"sizes": [1, 2]}, {"sizes": (1, 2)})
    with pytest.raises(RecordError) as caught:
        require_same(tmp_path, before, {"tp": 2, "sizes": (1, 2), "new": {}})
    assert str(caught.value) == (
        f'{tmp_path} was begun with other settings: tp was 1 and is 2; gone was "x" and is null; '
        f"new was null and is {{}}. Give another --out, or remove {tmp_path} to begin anew."
    )


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "result.json"
    write(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write(file, "new \udc80")
    assert file.read_text() == "old"
    write(file, "new")
    assert [path.name for path in file.parent.iterdir() if path.suffix == ".json"] == [file.name]
    assert file.read_text() == "new"
