"""What is compiled for the CPU is kept on disk, and used where it cannot be."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numba
import pytest

from sglang_lz.compiled import compiled


def double(x: int) -> int:
    return 2 * x


def test_what_was_compiled_is_read_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    for hits in (0, 1):
        function = compiled(double)
        assert function(4) == 8
        assert sum(function.stats.cache_hits.values()) == hits


def test_a_full_disk_keeps_nothing_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    function = compiled(double)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(function._cache._cache_file, "save", full)
    assert function(4) == 8
    assert "is not kept" in caplog.text
    assert "No space left on device" in caplog.text
