"""Run a program that a language model wrote.

The program is one process in Linux namespaces of its own: it has the standard library, a clock, an
empty folder of 16 MB, and no environment, network, other process or device. Every other folder is
read-only. Kernels have errors; against someone who knows one, this is no protection.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CPU_SECONDS = 5
WALL_SECONDS = 60.0
MEMORY_BYTES = 1 << 30
FOLDER_BYTES = 16 << 20
PASSED = 42
"""The exit status at the end of a program; one that ends itself has another."""

_NAMESPACES = ("--user", "--map-root-user", "--net", "--mount", "--pid", "--ipc")

# Runs in the namespaces, reads the program, gives up every right, and executes it. As init of its
# namespace it takes all processes with it. Root's number of processes is not limited by the kernel,
# so a filter of system calls refuses new ones, other programs, sockets (also those of files), new
# namespaces and io_uring, which could make a socket.
_INSIDE = """
import ctypes, os, resource, struct, sys

folder, cpu, memory, size, passed = sys.argv[1], *map(int, sys.argv[2:])
libc = ctypes.CDLL(None, use_errno=True)

def call(function, *arguments):
    if function(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

architecture, refused = {
    "x86_64": (0xC000003E, (41, 56, 57, 58, 59, 272, 322, 425, 435)),
    "aarch64": (0xC00000B7, (97, 198, 220, 221, 281, 425, 435)),
}[os.uname().machine]
program = sys.stdin.read()
# Read-only, no devices, no rights from files: every mount below /. Then the folder.
attributes = struct.pack("QQQQ", 7, 0, 0, 0)
call(libc.syscall, 442, -100, b"/", 0x8000, attributes, len(attributes))
call(libc.mount, b"tmpfs", os.fsencode(folder), b"tmpfs", 6, b"size=%d" % size)
os.chdir(folder)
os.environ.clear()
for name, most in (
    ("CPU", cpu), ("AS", memory), ("FSIZE", size), ("NPROC", 1), ("NOFILE", 64), ("CORE", 0)
):
    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
call(libc.prctl, 38, 1, 0, 0, 0)  # no new privileges
call(libc.capset, struct.pack("Ii", 0x20080522, 0), bytes(24))
# Another architecture, x32 included, ends the process; what is refused has EPERM.
steps = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (6, 0, 0, 1 << 31), (0x20, 0, 0, 0)]
steps += [(0x35, 0, 1, 1 << 30), (6, 0, 0, 1 << 31)]
steps += [(0x15, len(refused) - i, 0, number) for i, number in enumerate(refused)]
steps += [(6, 0, 0, 0x7FFF0000), (6, 0, 0, 0x50001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
call(libc.prctl, 22, 2, struct.pack("HP", len(steps), ctypes.addressof(code)), 0, 0)
exec(compile(program, "program", "exec"), {"__name__": "program"})
os._exit(passed)
"""


class SandboxError(Exception):
    """Why this machine cannot run programs of models, in a sentence for its user."""


def passes(program: str, *, seconds: float = WALL_SECONDS) -> bool:
    """Whether a program in Python comes to its end without an error.

    Args:
        program: what to run.
        seconds: of the clock that it may take; it has 5 seconds of the processor.

    Raises:
        SandboxError: this machine has no sandbox.
    """
    _require()
    return _status(program, seconds) == PASSED


@functools.cache
def _require() -> None:
    if shutil.which("unshare") is None or _status("pass", WALL_SECONDS) != PASSED:
        raise SandboxError(
            "programs of models are only run in a sandbox, and this machine has none: it needs "
            "Linux 5.12 or later on x86-64 or ARM64, util-linux, and a kernel that lets "
            f"`unshare {' '.join(_NAMESPACES)} true` succeed (containers often do not). The "
            "samples are kept; `report` on another machine scores them."
        )


def _status(program: str, seconds: float) -> int | None:
    """The exit status of a program; None if it took too long."""
    inside = [Path(sys.executable).resolve(), "-I", "-S", "-c", _INSIDE]
    limits = [CPU_SECONDS, MEMORY_BYTES, FOLDER_BYTES, PASSED]
    with tempfile.TemporaryDirectory() as folder:
        try:
            return subprocess.run(
                [
                    *("unshare", *_NAMESPACES, "--fork", "--kill-child", "--"),
                    *map(str, [*inside, folder, *limits]),
                ],
                input=program.encode(errors="replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None
