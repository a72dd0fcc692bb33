"""Builds the automata of constraints in separate processes with tight time and memory limits.

The client's input decides how much time and memory this needs, and while Python is computing, no
other thread of the same process runs. So each server has one small process that forks once for each
constraint. The child has hard limits, and whatever happens to it, the server only reads from a
socket.
"""

from __future__ import annotations

import atexit
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

from proper_tokens.codepoints import SIZE
from proper_tokens.language import Language, language_of
from proper_tokens.rules import ANY_TEXT, Rules
from proper_tokens.tokenizer import Unsupported

SECONDS = 2
"""The CPU time for one constraint."""
BYTES = 256 << 20
"""The memory for one constraint."""
AT_ONCE = min(8, max(1, len(os.sched_getaffinity(0)) // 2))
"""How many constraints are compiled at the same time: half the number of processors, at most 8."""
PATIENCE = 60.0
"""Seconds to wait for an answer; generous, for busy machines."""
_NICENESS = 15  # the model takes precedence, but other processes cannot starve the compiler
_CHECK, _BUILD = b"C", b"B"
_ERROR, _RIGHT = b"E", b"R"
_SPENT = f"it takes more than {SECONDS} s or {BYTES >> 20} MB to compile"


class Compiler:
    """The helper process that compiles constraints for this process. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, rules: str) -> None:
        """Check whether rules in XGrammar's JSON can be read.

        Raises:
            Unsupported: they do not, or need too much time or memory.
        """
        self._ask(_CHECK, rules)

    def language(self, rules: str) -> Language:
        """The automaton of rules in XGrammar's JSON.

        Raises:
            Unsupported: as for `check`, or the language contains no text.
        """
        return _unpacked(self._ask(_BUILD, rules)[len(_RIGHT) :])

    def stop(self) -> None:
        """Stop the process; it is started again when it is needed."""
        with self._lock:
            if self._process is not None and self._control is not None:
                self._control.close()
                self._process.wait()
                self._process = None

    def _ask(self, task: bytes, rules: str) -> bytearray:
        with self._room:
            job = self._job()
            with job:
                try:
                    job.sendall(task + rules.encode("utf-8", "surrogatepass"))
                    job.shutdown(socket.SHUT_WR)
                    answer = _all_of(job, time.monotonic() + PATIENCE)
                except OSError:  # the child has exited or does not answer
                    answer = bytearray()
        if answer[:1] == _ERROR:
            raise Unsupported(answer[1:].decode())
        if answer[:1] != _RIGHT:
            raise Unsupported(_SPENT)
        return answer

    def _job(self) -> socket.socket:
        """A connection to a new child."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                socket.send_fds(self._running(), [b"."], [theirs.fileno()])
            except OSError:  # something else killed it
                self._process = None
                socket.send_fds(self._running(), [b"."], [theirs.fileno()])
        return ours

    def _running(self) -> socket.socket:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        if self._control is not None:
            self._control.close()
        self._control, theirs = socket.socketpair()
        with theirs:
            threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment() | dict.fromkeys(threads, "1"),
            )
        return self._control


def environment() -> dict[str, str]:
    """The environment in which a new Python imports this package from where it is."""
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


COMPILER = Compiler()
"""The compiler of this process."""
atexit.register(COMPILER.stop)


def _all_of(connection: socket.socket, deadline: float) -> bytearray:
    """Read until the other side closes the connection.

    Raises:
        OSError: it was not closed in time.
    """
    answer = bytearray()
    while True:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(1 << 20)
        if not part:
            return answer
        answer += part


def _packed(language: Language) -> memoryview:
    """A language as a file of numpy, in which its classes are those of each range of characters."""
    begin = np.flatnonzero(np.append(True, language.classes[1:] != language.classes[:-1]))
    file = io.BytesIO()
    np.savez(file, begin=begin, **language._replace(classes=language.classes[begin])._asdict())
    return file.getbuffer()


def _unpacked(answer: bytearray) -> Language:
    with np.load(io.BytesIO(answer), allow_pickle=False) as file:
        arrays = dict(file)
    lengths = np.diff(np.append(arrays.pop("begin"), SIZE))
    return Language(**arrays | {"classes": np.repeat(arrays["classes"], lengths)})


def _serve(control: socket.socket) -> None:
    """Fork for each incoming connection until the server has exited."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that children need not be waited for
    os.nice(_NICENESS)
    _packed(language_of(Rules(ANY_TEXT)))  # so that children need not import or compile anything
    while True:
        _, numbers, _, _ = socket.recv_fds(control, 1, 1)
        if not numbers:
            return
        with socket.socket(fileno=numbers[0]) as job:
            if os.fork() == 0:
                code = 1
                try:
                    control.close()
                    _work(job)
                    code = 0
                finally:
                    os._exit(code)


def _work(job: socket.socket) -> None:
    """Do one job, in a child process."""
    request = _all_of(job, time.monotonic() + PATIENCE)
    with open("/proc/self/statm") as file:
        has = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + BYTES, has + BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    packed = memoryview(b"")
    try:
        rules = Rules(request[1:].decode("utf-8", "surrogatepass"))
        if request[:1] == _BUILD:
            packed = _packed(language_of(rules))
        answer = _RIGHT
    except Unsupported as error:
        answer = _refusal(str(error))
    except RecursionError:
        answer = _refusal("it is nested too deeply")
    except MemoryError:
        answer = _refusal(_SPENT)
    except Exception as error:
        traceback.print_exc()
        answer = _refusal(f"it cannot be read: {error!r}")
    job.sendall(answer)
    job.sendall(packed)


def _refusal(reason: str) -> bytes:
    return _ERROR + reason.encode("utf-8", "replace")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
