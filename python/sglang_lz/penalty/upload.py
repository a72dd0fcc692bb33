"""Copies from the host that do not wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device.

    CUDA copies from pinned memory while the host goes on. `torch.tensor` cannot pin what comes from
    numpy; a tensor that shares the memory of an array can be pinned here.

    Args:
        values: on the CPU; not to be changed afterwards.
        device: on a CPU the result is `values` itself.
    """
    if device.type == "cuda" and not values.is_pinned():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
