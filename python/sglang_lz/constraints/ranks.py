"""The ranks that schedule the same requests, and must make the same decisions about them.

With tensor parallelism each rank runs its own scheduler, and upstream makes all of them schedule,
draft and accept identically. A time limit may be exceeded on one rank and not on another, so a
decision that depends on time is made by all ranks together. They all make these decisions in the
same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

GROUPS: list[Any] = []
"""The process group of these ranks, if there are several."""


def join(scheduler: Any) -> None:
    """Set the group of a scheduler, upstream's Scheduler, of this process."""
    if scheduler.dp_tp_group.world_size > 1:
        GROUPS.append(scheduler.dp_tp_cpu_group)


def least(numbers: Sequence[int]) -> list[int]:
    """The minimum over all ranks of each number; every rank passes the same number of them."""
    if not GROUPS or not numbers:
        return list(numbers)
    found = torch.tensor(numbers, dtype=torch.int32)
    for group in GROUPS:
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MIN, group=group)
    return [int(number) for number in found.tolist()]
