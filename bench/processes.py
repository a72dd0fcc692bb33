"""Background processes: started in a group of their own, awaited, and ended with all they started.

Several may run at once. Standard library only; Linux only.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

LOG_LINES = 40
POLL_SECONDS = 0.25
KILL_SECONDS = 10.0
"""How long the kernel may take to end a process that was killed."""


class ProcessError(RuntimeError):
    """A process ended early or was late; the message ends with the end of its log."""


class Background:
    """A process that leads a group of its own.

    As a context manager it stops the group when the block is left.

    Attributes:
        name: what errors call it.
        log: the file that its output goes to; None if it shares ours.
        pid: its process id, and that of the group.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "process",
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: IO[str] | None = None,
        grace: float = 20.0,
        launch: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        """Start it.

        Args:
            command: the program and its arguments.
            name: what errors call it.
            log: a file for its standard output and error, written anew.
            env: its environment; ours by default.
            cwd: its working directory; ours by default.
            stdin: its standard input; empty by default.
            grace: seconds that `stop` leaves the group to end, unless told otherwise.
            launch: what starts it; called as `subprocess.Popen`, and returns what it does.
        """
        self.name, self.log, self._grace = name, log, grace
        with contextlib.ExitStack() as files:
            output = None
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                output = files.enter_context(log.open("wb"))
            self._process = launch(
                command,
                env=env,
                cwd=cwd,
                stdin=stdin or subprocess.DEVNULL,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def poll(self) -> int | None:
        """Return the exit status, None while it runs; -N if signal N ended it."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, None if it still runs after so many seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def wait_until(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Block until `is_ready()` is true.

        Args:
            is_ready: asked again and again.
            seconds: how long at most.

        Raises:
            ProcessError: the process ended, or was not ready in time.
        """
        deadline = time.monotonic() + seconds
        while not is_ready():
            status = self.poll()
            if status is not None:
                raise self.error(f"{self.name} ended with status {status}")
            if time.monotonic() > deadline:
                raise self.error(f"{self.name} not ready after {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def error(self, problem: str) -> ProcessError:
        """Return an error that says what the problem is and shows the end of the log."""
        return ProcessError("\n".join([problem, *([tail_of(self.log)] if self.log else [])]))

    def stop(self, grace: float | None = None) -> None:
        """End the whole group; without effect if nothing of it runs.

        Args:
            grace: seconds from the SIGTERM to the SIGKILL; by default those given at the start.
        """
        grace = self._grace if grace is None else grace
        if self.poll() is not None:
            grace = 0.0  # nobody is left who could end the others
        if grace > 0:
            # The leader alone: SGLang's ends its children, and takes one that ends before it for
            # a crash.
            self._process.terminate()
        if not self._await_end(grace):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._await_end(KILL_SECONDS)
        self._process.wait()

    def _await_end(self, seconds: float) -> bool:
        """Wait until nothing of the group runs; return whether that is so in time."""
        deadline = time.monotonic() + seconds
        while runs := is_alive(self.pid):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        return not runs


def tail_of(log: Path) -> str:
    """Return the last lines of a log under a title."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join([f"--- end of {log} ---", *lines])


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on.

    It is drawn at random, since tests run side by side, from below the ports that the kernel gives
    to connections: a server binds it seconds later.
    """
    while True:
        port = random.SystemRandom().randrange(10000, 20000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def is_alive(group: int) -> bool:
    """Whether a process of the group runs; a zombie that nobody has reaped does not."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                # "pid (name) state parent group ..."; the name may hold anything.
                state, _, of_group, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(of_group) == group and state not in "ZX":
                    return True
    return False
