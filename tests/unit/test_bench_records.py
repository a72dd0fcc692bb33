"""Records on disk: whole lines, one writer, the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.records import Lines, RecordError, read_lines, require_same


def test_a_truncated_line_is_dropped(tmp_path: Path) -> None:
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
    require_same(tmp_path, {"sizes": [1, 2]}, {"sizes": (1, 2)})
    with pytest.raises(RecordError, match="tp was 1 and is 2; new was null"):
        require_same(tmp_path, {"tp": 1, "sizes": [1, 2]}, {"tp": 2, "sizes": (1, 2), "new": {}})
