"""Folders that cannot be written: those of a server's caches on a full disk, or a read-only one."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

FULL = "full disk"
READ_ONLY = "read-only caches"
FAULTS = (FULL, READ_ONLY)

CACHE = "NUMBA_CACHE_DIR"
"""The environment variable that names the folder to which a server writes what it compiles."""
FULL_BYTES = 256 * 1024
"""Without root, no file may become larger: less than most of what is cached, more than a log."""


@contextlib.contextmanager
def folder_with(fault: str, folder: Path) -> Iterator[dict[str, str]]:
    """Make a folder that has the fault.

    Args:
        fault: one of `FAULTS`.
        folder: made here; a file system of its own, if we may mount one.

    Yields:
        The environment of a server whose cache is there. Its other temporary files are not: with
        metrics, prometheus_client maps such files, and a full disk then ends upstream's server.
    """
    folder.mkdir(parents=True)
    is_mounted = _mount(folder, "-o", "size=64k")
    try:
        if fault == FULL:
            if is_mounted:
                _fill(folder / "filled")
        elif not (is_mounted and _mount(folder, "-o", "remount,ro")):
            folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        yield {CACHE: str(folder)}
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        else:
            folder.chmod(stat.S_IRWXU)


def limit(fault: str, folder: Path, pid: int) -> None:
    """Where no file system could be mounted for a full disk: let a server write no large file."""
    if fault == FULL and not os.path.ismount(folder):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))


def _mount(folder: Path, *options: str) -> bool:
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
