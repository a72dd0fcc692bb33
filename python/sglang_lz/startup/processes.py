"""Children that end with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # prctl(2)


def ending_with_us() -> Callable[[], None]:
    """Return a ``preexec_fn``: the kernel sends the child a SIGTERM when its parent dies.

    The parent is the thread that starts the child. Use it only in a process with a single thread.
    """
    parent = os.getpid()
    # Loaded here and not in the child, which must do as little as possible before it runs.
    prctl = ctypes.CDLL(None).prctl

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)

    return end_with_parent
