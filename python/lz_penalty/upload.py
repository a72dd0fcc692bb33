"""Copies from the host that do not wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device.

    CUDA copies from pinned memory while the host continues. `torch.tensor` cannot pin the data of a
    numpy array, but a tensor that shares its memory with the array can be pinned here.

    Args:
        values: a tensor on the CPU, which must not be changed afterwards.
        device: where to copy it; on a CPU the result is `values` itself.
    """
    if device.type == "cuda":
        values = values.pin_memory()  # itself if it is pinned
    return values.to(device, non_blocking=True)
