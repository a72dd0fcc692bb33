"""Priority and time accounting of the threads that compute for requests beside the model's."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable


def make_way(niceness: int) -> None:
    """Let this thread, and those that it starts, yield the processor to others.

    Args:
        niceness: 0 to 19. At most 5 for a thread that often holds Python's GIL.
    """
    with contextlib.suppress(OSError):  # it may not be permitted, and is only an optimization
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


class Stopwatch:
    """Measures a wait in seconds that count against a request.

    On a busy machine this process gets only part of a processor, and its work takes longer through
    no fault of the request. So only the time counts in which the work used a processor. At least a
    hundredth of the time always counts, so every wait ends.

    Args:
        clock: returns the time in seconds.
        used: returns how many seconds of processor time the work has used. By default that is all
            of this process; while a scheduler waits, hardly anything but the work runs in it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock, self._used = clock, used
        self._begin, self._used_before = clock(), used()

    def seconds(self) -> float:
        """How many seconds count so far."""
        passed = self._clock() - self._begin
        return max(min(passed, self._used() - self._used_before), passed / 100)


class Allowance:
    """A budget of seconds that refills as time passes. It is thread-safe.

    Args:
        most: the initial and maximum number of seconds.
        share: how many seconds are regained per second.
        clock: returns the time in seconds.
    """

    def __init__(
        self, most: float, share: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._share, self._clock = most, share, clock
        self._left, self._at = most, clock()
        self._lock = threading.Lock()

    def left(self) -> float:
        """Seconds that may be spent now."""
        with self._lock:
            return self._renewed()

    def spend(self, seconds: float) -> None:
        """Spend seconds, possibly more than are left."""
        with self._lock:
            self._left = self._renewed() - seconds

    def _renewed(self) -> float:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._share)
        self._at = now
        return self._left


ORDINARY = 0.01
"""Seconds that the next tokens of a constraint may always take. Usually they take far less."""
