"""How long a scheduler waits for masks. A row that is not ready delays the whole batch."""

from __future__ import annotations

from sglang_lz.threads import Allowance

PATIENCE = 0.7
"""Seconds that a scheduler waits for the masks of one request, besides what its tokens earn."""
A_TOKEN = 0.02
"""Seconds that each token of a request earns."""
GRACE = 0.1
"""Seconds that a scheduler waits for a request even if others have used up the shared allowance."""


class Waiting:
    """How much longer a scheduler waits for the masks of one request.

    Args:
        shared: the allowance for all requests together. They delay the scheduler for at most half
            of its time, and for less than a second at once.
    """

    def __init__(self, shared: Allowance) -> None:
        self._shared = shared
        self._left = PATIENCE
        self._furthest = 0

    def seconds(self) -> float:
        """How long the scheduler may wait now."""
        return max(0.0, min(self._left, max(self._shared.left(), GRACE)))

    def waited(self, seconds: float) -> None:
        """Record how long the scheduler has waited."""
        self._left -= seconds
        self._shared.spend(seconds)

    def got_to(self, length: int) -> None:
        """Record the length of the output; draft tokens that were rolled back count only once."""
        if length > self._furthest:
            self._left = min(PATIENCE, self._left + A_TOKEN * (length - self._furthest))
            self._furthest = length
