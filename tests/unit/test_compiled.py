"""Functions compiled for the CPU are cached on disk, and work where they cannot be cached."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numba
import pytest

from lz_penalty.compiled import compiled


def double(x: int) -> int:
    return 2 * x


def test_compiled_code_is_loaded_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    for hits in (0, 1):
        function = compiled(double)
        assert function(4) == 8
        assert sum(function.stats.cache_hits.values()) == hits


def test_a_full_disk_disables_the_cache_without_an_error(
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
def test_half_written_code_of_a_killed_process_is_compiled_again(
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
