"""Matrix products on a CPU whose results do not depend on the rest of the batch.

With --enable-deterministic-inference, a request's tokens must not depend on the other requests in
its batch. On a CPU, this module replaces upstream's GPU kernels for that (patches/cpu/). Attention
is computed separately for each request there, and everything else but matrix products for each row.
Matrix products need special care, because BLAS adds in a different order if there are few rows.
"""

from typing import Any

import torch
from torch.nn.functional import pad

FEWEST_ROWS = 16
"""BLAS computes a row of a product with at least this many rows as in any larger product (observed
from 4 rows on)."""

_libraries: list[Any] = []


def enable_batch_invariant_mode() -> None:
    """From now on, pad products of fewer rows than `FEWEST_ROWS` with zeros (upstream's hook)."""
    if not _libraries:
        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        library.impl("mm", mm, "CPU")
        library.impl("addmm", addmm, "CPU")
        _libraries.append(library)


def disable_batch_invariant_mode() -> None:
    """Undo `enable_batch_invariant_mode` (upstream's hook)."""
    while _libraries:
        _libraries.pop()._destroy()


def mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product (M, N) of (M, K) and (K, N)."""
    # The `out=` variants are not replaced, so this does not recurse.
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

    The bias is broadcast to (M, N), as in torch.
    """
    bias = _filled(bias.expand(len(left), right.shape[1]))
    out = left.new_empty(bias.shape)
    torch.addmm(bias, _filled(left), right, beta=beta, alpha=alpha, out=out)
    return out[: len(left)]


def _filled(rows: torch.Tensor) -> torch.Tensor:
    missing = FEWEST_ROWS - len(rows)
    return pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
