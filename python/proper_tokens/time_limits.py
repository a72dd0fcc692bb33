"""How long a scheduler waits for masks. A row that is not ready delays the whole batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 0.7
"""Seconds that the searches of one request may take while a scheduler waits, besides what its
tokens earn."""
A_TOKEN = 0.02
"""Seconds that each token of a request earns."""
GRACE = 0.25
"""Seconds that each search may take even if others have used up the shared allowance."""
BRIEFLY = 0.02
"""Seconds that a scheduler waits for a mask of a request that can pause."""
ORDINARY = 0.01
"""Seconds that the next tokens of a constraint may always take. Usually they take far less."""


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
        return self.spend(0)

    def spend(self, seconds: float) -> float:
        """Spend seconds, possibly more than are left; returns what is left then."""
        with self._lock:
            now = self._clock()
            renewed = min(self._most, self._left + (now - self._at) * self._share)
            self._left, self._at = renewed - seconds, now
            return self._left


MASKS = Allowance(0.5, 0.1)
"""How long the masks of all requests together may delay a scheduler: half a second at once, and a
tenth of the time in the long run."""


class WaitLimit:
    """How much longer a scheduler waits for the masks of a request that cannot pause.

    When this time is used up, the request has to end. Two times are measured. The time that the
    request's own searches take counts against the request, so a request with an easy constraint
    never ends because others search for a long time. The time that the scheduler waits counts
    against all requests together, unless the search is an ordinary one. When the requests have used
    up their common time, the scheduler waits only for short searches.

    Args:
        shared: the allowance for all requests together (`MASKS`).
    """

    def __init__(self, shared: Allowance) -> None:
        self._shared = shared
        self._left = PATIENCE
        self._furthest = 0

    clock = staticmethod(time.process_time)
    """By which a wait counts (`Stopwatch`)."""

    def is_over(self, own: float, waited: float) -> bool:
        """Whether the scheduler must stop waiting.

        Args:
            own: seconds that the search itself has taken meanwhile.
            waited: seconds that the scheduler has waited for it.
        """
        return own >= self._left or (own >= GRACE and waited >= self._shared.left())

    def waited(self, own: float, waited: float) -> None:
        """Record a wait that has ended; the arguments are those of `is_over`."""
        self._left -= own
        if own >= ORDINARY:
            self._shared.spend(waited)

    def got_to(self, length: int) -> None:
        """Record the length of the output; draft tokens that were rolled back count only once."""
        if length > self._furthest:
            self._left = min(PATIENCE, self._left + A_TOKEN * (length - self._furthest))
            self._furthest = length


class BriefWaitLimit(WaitLimit):
    """How much longer a scheduler waits for a mask of a request that can pause instead.

    All of the time counts, even if a busy machine does other work in it, because the other requests
    wait in any case. It counts only against all requests together.
    """

    clock = staticmethod(time.monotonic)

    def is_over(self, own: float, waited: float) -> bool:
        """Whether the scheduler must stop waiting."""
        return waited >= min(BRIEFLY, self._shared.left())

    def waited(self, own: float, waited: float) -> None:
        """Record a wait that has ended."""
        self._shared.spend(waited)
