"""Starts servers as forks of a process that has imported all that they import.

A server imports six thousand modules, which takes longer than all that it does to be ready. Its own
processes are forks already (site/sitecustomize.py).
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn

IMPORTS = (
    "sglang_lz.startup.launch",
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.models.registry",
)
POLL_SECONDS = 0.05


def of_environment(env: Mapping[str, str]) -> ForkServer:
    """The fork server of some environment variables, which modules may read at their import."""
    return _of_variables(tuple(sorted(env.items())))


@functools.cache
def _of_variables(variables: tuple[tuple[str, str], ...]) -> ForkServer:
    return ForkServer(dict(variables))


class ForkServer:
    """A process that forks one for each command; it ends with this one."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def launch(
        self, command: Sequence[str], *, env: Mapping[str, str], stdout: IO[bytes], **_: Any
    ) -> Fork:
        """Run `python -m MODULE ARGUMENT ...` in a fork that leads a session of its own.

        Args:
            command: the interpreter, which is not used, and its arguments.
            env: the environment.
            stdout: the file for its standard output and error.
        """
        arguments = {"command": list(command[2:]), "env": dict(env), "log": stdout.name}
        return Fork(self, self.ask(arguments))

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer of `_answer` to a request.

        Raises:
            RuntimeError: the process ended; it has written why.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the fork server ended with status {self._process.wait()}")
        return json.loads(answer)


class Fork:
    """A process, as `subprocess.Popen` has it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._server.ask({"poll": self.pid})
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it has not ended in time.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or math.inf)
            time.sleep(POLL_SECONDS)
        return status

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def _serve() -> None:
    """Answer each line of the standard input with one of the standard output."""
    for name in IMPORTS:
        importlib.import_module(name)
    # Otherwise each collection of garbage in a fork goes through all of this, and copies it.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _answer(request: dict[str, Any]) -> int | None:
    """The id of a new process, or the exit status of one, or None if it runs."""
    if "poll" in request:
        pid, status = os.waitpid(request["poll"], os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    assert threading.active_count() == 1, threading.enumerate()
    pid = os.fork()
    if pid == 0:
        _run(**request)
    return pid


def _run(command: list[str], env: dict[str, str], log: str) -> NoReturn:
    """In the fork: run a module as `python -m` does."""
    os.setsid()
    with open(os.devnull) as nothing, open(log, "a") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(env)  # beside what the imports have set
    os.execv = _become
    status = 1
    try:
        _become(sys.executable, [sys.executable, "-m", *command])
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _become(_: str, command: Sequence[str]) -> NoReturn:
    """In place of `os.execv`, with which `sglang-lz serve` becomes the server: run it here."""
    sys.argv = list(command[2:])
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    _serve()
