"""The threads that compute for requests beside the model's, at a lower priority.

They compute what the scheduler needs for a new state while its own thread continues. A scheduler
that waits for a mask leaves the processor to them. Otherwise the model's threads take precedence.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)

_NICENESS = 5  # not higher, because these threads hold the GIL now and then
_SLOW_NICENESS = 10  # there may be many of these threads, and they hardly hold the GIL


def make_way(niceness: int) -> None:
    """Let this thread, and those that it starts, yield the processor to others.

    Args:
        niceness: 0 to 19. At most 5 for a thread that often holds Python's GIL.
    """
    with contextlib.suppress(OSError):  # it may not be permitted, and is only an optimization
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


WORKERS = ThreadPoolExecutor(4, "proper-tokens", make_way, (_NICENESS,))
"""No search occupies one of these threads for more than a slice (`product.SLICE`), so the searches
of different constraints hardly wait for each other."""
_WARMER = ThreadPoolExecutor(1, "proper-tokens-warm", make_way, (_SLOW_NICENESS,))


def slow_thread() -> ThreadPoolExecutor:
    """A thread for the long searches of one constraint."""
    return ThreadPoolExecutor(1, "proper-tokens-slow", make_way, (_SLOW_NICENESS,))


def in_background(work: Iterator[None]) -> None:
    """Do work in one thread, in turn with the other work that was given to it."""
    with contextlib.suppress(RuntimeError):  # Python exits
        _WARMER.submit(_do_next, work)


def _do_next(work: Iterator[None]) -> None:
    try:
        is_over = next(work, work) is work
    except Exception:
        logger.exception("Proper tokens: a constraint is not warmed further")
        return
    if not is_over:
        in_background(work)
