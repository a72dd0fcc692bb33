"""``python -m sglang_lz.startup.launch``: start upstream's server, or explain briefly why not.

`sglang-lz serve` becomes this process. It accepts the arguments of ``sglang.launch_server`` and
lets upstream parse them exactly once, so that our checks see what the server will use. A check that
fails raises DistError.
"""

from __future__ import annotations

import argparse
import errno
import functools
import itertools
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import verify_imported

T = TypeVar("T")

CORES = "SGLANG_CPU_OMP_THREADS_BIND"
"""Upstream's variable with the cores of each rank on a CPU, for example ``0,1|2,3``."""


def main(arguments: Sequence[str]) -> None:
    """Run the server until it ends; DistError if the arguments or the machine do not allow it."""
    check_temporary_folder()
    # These imports take seconds, and each process that the server spawns imports this module.
    import sglang
    from sglang.launch_server import load_plugins, prepare_server_args, run_server
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils import get_device, kill_process_tree

    if problems := verify_imported(sglang):  # an unpatched sglang would not check itself
        raise DistError(f"{problems[0]}; reinstall sglang-lz, or mend PYTHONPATH.")
    argparse.ArgumentParser.error = _refuse  # type: ignore[method-assign]
    # Upstream calls this after it has resolved all arguments; it must not be called twice.
    ServerArgs.check_server_args = _refusing(ServerArgs.check_server_args)
    load_plugins()
    config = _refusing(prepare_server_args)(list(arguments))
    check_model_path(config.model_path)
    check_address(config.host, config.port)
    replicas = 1 if config.enable_dp_attention else config.dp_size
    ranks = config.tp_size * config.pp_size * replicas // config.nnodes  # on this machine
    if ranks > 1 and (config.device or get_device()) == "cpu":
        os.environ.setdefault(CORES, share_cores(ranks))
    _refusing(config.resolve_once)()
    try:
        run_server(config)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _refuse(self: argparse.ArgumentParser, message: str) -> NoReturn:
    """Replaces argparse's `error`, which would print 480 lines of usage."""
    raise DistError(f"{message}; python -m sglang.launch_server --help lists all arguments.")


def _refusing(check: Callable[..., T]) -> Callable[..., T]:
    """Wrap one of upstream's checks so that its deliberate errors become DistError."""

    @functools.wraps(check)
    def refusing(*args: object, **kwargs: object) -> T:
        try:
            return check(*args, **kwargs)
        except (AssertionError, OSError, ValueError) as error:
            if message := " ".join(str(error).split()):
                raise DistError(message) from error
            raise

    return refusing


def check_temporary_folder() -> None:
    """Check the folder for temporary files, which upstream's sockets and torch's compiler need."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        raise DistError(
            "no folder for temporary files can be written; set TMPDIR to one, and give a read-only "
            "container one with --tmpfs /tmp:exec."
        ) from None


def check_model_path(path: str) -> None:
    """Reject a path that does not exist, and is no name of a hub model, OWNER/MODEL.

    Upstream would look for it on a model hub.
    """
    a_file_there = path.lower().endswith(".gguf")  # OWNER/MODEL/.../FILE
    deep = path.count("/") > 1 and "://" not in path and not a_file_there
    local = deep or path.startswith(("/", "./", "../", "~"))
    if local and not Path(os.path.expanduser(path)).exists():
        raise DistError(f"--model-path {path} does not exist.")


def check_address(host: str, port: int) -> None:
    """Check the address early: upstream binds it after loading the model, and may then hang."""
    if not 1 <= port <= 65535:
        raise DistError(f"--port must be an integer in [1, 65535], got {port}.")
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise DistError(f"cannot listen on port {port} of {host} ({error}).") from None
    reasons = []
    for family, _, _, _, address in places:
        try:
            socket.create_server(address, family=family).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = f"port {port} of {host} is in use; choose another with --port."
                raise DistError(why) from None
            reasons.append(os.strerror(error.errno or 0))
    if len(reasons) == len(places):  # one is enough: localhost also resolves to an IPv6 address
        raise DistError(f"cannot listen on port {port} of {host} ({reasons[-1]}).")


def share_cores(ranks: int) -> str:
    """Divide the physical cores that this process may use among ranks, in the syntax of `CORES`.

    They are in the order of NUMA nodes. If there are too few, ranks share.
    """
    from sglang.srt.utils.common import get_cpu_ids_by_node

    cores = [core for node in get_cpu_ids_by_node() for core in node.split(",")]
    cores = cores or [str(core) for core in sorted(os.sched_getaffinity(0))]
    if ranks > len(cores):
        return "|".join(cores[rank % len(cores)] for rank in range(ranks))
    ends = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return "|".join(",".join(cores[begin:end]) for begin, end in itertools.pairwise(ends))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DistError as error:
        print(f"sglang-lz: {error}", file=sys.stderr)
        sys.exit(2)  # as `sglang-lz` itself
