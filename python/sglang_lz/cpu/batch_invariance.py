"""Matrix products on a CPU that do not depend on what else is in the batch.

For --enable-deterministic-inference, in place of upstream's kernels for GPUs (patches/cpu/): a
request's tokens must not change with the requests beside it. Attention is computed request by
request there and everything else row by row, so only products of matrices are left: BLAS adds up
a few rows in another order than many.
"""

from typing import Any

import torch
from torch.nn.functional import pad

FEWEST_ROWS = 16
"""From so many rows on, BLAS treats each as it does in any larger batch (seen: from 4 on)."""

_libraries: list[Any] = []


def enable_batch_invariant_mode() -> None:
    """Compute products of fewer rows than `FEWEST_ROWS` with rows of zeros added, from now on."""
    if not _libraries:
        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        library.impl("mm", mm, "CPU")
        library.impl("addmm", addmm, "CPU")
        _libraries.append(library)


def disable_batch_invariant_mode() -> None:
    """Take it back."""
    while _libraries:
        _libraries.pop()._destroy()


def mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product (M, N) of (M, K) and (K, N)."""
    # The variants that write are not replaced, and so do not come back here.
    out = left.new_empty(max(FEWEST_ROWS, len(left)), right.shape[1])
    return torch.mm(_filled(left), right, out=out)[: len(left)]


def addmm(
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """`alpha` times the product (M, N) of (M, K) and (K, N), plus `beta` times a bias.

    The bias is broadcast to (M, N), as torch does.
    """
    bias = _filled(bias.expand(len(left), right.shape[1]))
    out = left.new_empty(bias.shape)
    torch.addmm(bias, _filled(left), right, beta=beta, alpha=alpha, out=out)
    return out[: len(left)]


def _filled(rows: torch.Tensor) -> torch.Tensor:
    missing = FEWEST_ROWS - len(rows)
    return pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
