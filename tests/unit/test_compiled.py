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


class Killed(BaseException):
    """Nobody catches it, as SIGKILL."""


@pytest.mark.parametrize("step", ["_save_index", "_save_data"])
def test_what_is_half_written_by_a_process_that_is_killed_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also where an older version of the function is in the cache, under the same name."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def killed(*_: Any) -> None:
        raise Killed

    compiled(double)(4)
    for kills, hits in ((True, 0), (False, 0), (False, 1)):
        function = compiled(double)
        file = function._cache._cache_file
        file._source_stamp = "newer"
        with monkeypatch.context() as patch:
            if kills:
                patch.setattr(file, step, killed)
                with pytest.raises(Killed):
                    function(4)
            else:
                assert function(4) == 8
        assert sum(function.stats.cache_hits.values()) == hits
