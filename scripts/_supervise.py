"""Runs a child process so that everything it starts ends with it, and with us.

It takes over this process's signals and its orphans, so a program with threads and several children
cannot use it: `bench.processes` is for those.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import _checkout  # noqa: F401, for the imports below
from sglang_lz.startup.processes import ending_with_us

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.05
STRAGGLER_SECONDS = 2.0
"""How long children's children may outlive a child, to tidy up after it."""

SHARED_MEMORY = Path("/dev/shm")

# prctl(2)
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Ended(Exception):
    """We were told to exit by a signal; `status` is the exit status that stands for that signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.status = 128 + signum


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, grace: float = 15.0
) -> int:
    """Run a command to completion in its own session and return its exit status.

    SIGINT, SIGTERM and SIGHUP are passed only to the command, which stops its own children in its
    own way. Whatever is left `grace` seconds later, after a second signal, or when the command has
    exited, is killed, even in another session, because we inherit it as a "subreaper". If we are
    killed ourselves, the kernel sends the command a SIGTERM. Shared memory that was mapped when the
    signal came is removed, because SGLang leaves some. Raises `Ended` if a signal told us to exit.
    """
    received: list[int] = []
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    previous = {
        signum: signal.signal(signum, lambda got, _: received.append(got))
        for signum in FORWARDED
        if not (nohup and signum == signal.SIGHUP)
    }
    child = None
    shared: set[Path] = set()
    try:
        child = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=ending_with_us(),  # noqa: PLW1509, we have one thread
        )
        shared = _wait(child, received, grace)
    finally:
        if child is not None:
            _end_all(child, min(grace, STRAGGLER_SECONDS))
        for file in shared:
            file.unlink(missing_ok=True)
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    if received:
        raise Ended(received[0])
    status = child.returncode
    return status if status >= 0 else 128 - status


def _wait(child: subprocess.Popen[bytes], received: list[int], grace: float) -> set[Path]:
    """Wait for the child and pass the first signal on to it, but no longer than `run` says.

    Returns the shared memory that was mapped when the signal came; empty without a signal.
    """
    shared: set[Path] = set()
    deadline = float("inf")
    while child.poll() is None and len(received) < 2 and time.monotonic() < deadline:
        if received and deadline == float("inf"):
            deadline = time.monotonic() + grace
            shared = _shared_memory(_descendants(os.getpid()))
            print("\nstopping ... (once more to kill)", file=sys.stderr, flush=True)
            child.send_signal(received[0])
        time.sleep(POLL_SECONDS)
    return shared


def _end_all(child: subprocess.Popen[bytes], patience: float) -> None:
    """Kill a child that is still running, and after `patience` seconds all of our descendants."""
    deadline = time.monotonic() + (patience if child.poll() is not None else 0.0)
    while descendants := _descendants(os.getpid()):
        if time.monotonic() >= deadline:
            for pid in descendants:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        child.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _shared_memory(pids: list[int]) -> set[Path]:
    """The files in /dev/shm that some processes have mapped, by inode.

    A semaphore is mapped under a temporary name before it gets its own.
    """
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended while we looked
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            inodes |= {int(line.split()[4]) for line in lines if f" {SHARED_MEMORY}/" in line}
    found = os.scandir(SHARED_MEMORY) if inodes else ()
    return {Path(entry) for entry in found if entry.inode() in inodes}


def _descendants(root: int) -> list[int]:
    """Pids of all processes below `root`, parents before children, from /proc."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            # The name, before ")", may contain anything.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found[1:]
