"""Stands in for FlashMLA, whose kernels are too large for a bundle.

EAGLE's worker imports upstream's backend for it on every NVIDIA GPU, to see whether it is in use.
`--attention-backend triton` never calls it. scripts/gpu-bundle takes this along.
"""

from __future__ import annotations

from typing import NoReturn


def fused_norm_rope_attn_rope_cast(*args: object, **options: object) -> NoReturn:
    """Raise an error, as no attention backend of the checks needs it."""
    raise NotImplementedError("this is not FlashMLA")
