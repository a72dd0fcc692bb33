"""The cost in bits of each next token for an LZ77 compressor of the recent tokens.

This is docs/SPEC.md section 2, with its symbols, for a batch on any device. All windows here are
newest first: column `k` of a window holds the position p with delta_p = `k + 1`. The suffix that a
match must equal therefore starts at column 0, and position p - 1 is in column `k + 1`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lz_penalty.window import LONGEST_RUN


def run_lengths(visible: Tensor, periods: int) -> Tensor:
    """run_k of every period k (docs/SPEC.md section 9), by direct comparison.

    Args:
        visible: tokens, oldest first, integer [length]. If all numbers are replaced by the same
            token, this returns the runs up to numbers.
        periods: how many columns to return.

    Returns:
        int32 [periods], run_k in column k; 0 in column 0.
    """
    run = torch.zeros(periods, dtype=torch.int32, device=visible.device)
    for period in range(1, min(periods, len(visible))):
        differs = (visible[period:] != visible[:-period]).flip(0).nonzero()
        longest = int(differs[0]) if len(differs) else len(visible) - period
        run[period] = min(longest, LONGEST_RUN)
    return run


def saved_bits(match: Tensor, length: Tensor, vocab_size: int, is_rate: Tensor) -> Tensor:
    """The bits saved by coding the token of each window column instead of a literal, log2 V.

    This is log2 V - cost_p of docs/SPEC.md section 2. `marginal` is equation (15) with its algebra
    corrected; `rate` is the bits per token of the match. The result is always >= 0.

    Args:
        match: match lengths, newest first, integer [rows, width].
        length: seen columns of each row, integer [rows].
        vocab_size: V, the width of the logits.
        is_rate: bool [rows]; False prices by `marginal`.

    Returns:
        float32 [rows, width]; 0 past `length`.
    """
    width = match.shape[1]
    column = torch.arange(width, dtype=torch.int32, device=match.device)
    alone = torch.log2(column + 1.0)
    # Find the longest match, and the nearest of those: compare match first, then reversed column.
    best = (match.int() * width + (width - 1 - column)).amax(dim=1, keepdim=True)
    longest, nearest = best // width, width - best % width
    before = torch.nn.functional.pad(match[:, 1:], (0, 1))
    extends_longest = (before == longest) & (longest >= 1)
    # cost_p = log2((l+1) * delta_p) - log2(l * d) - 1; with l = 0 no token extends a match.
    gained = torch.log2(longest + 1.0) - torch.log2(2.0 * longest.clamp_min(1) * nearest)
    cost = alone + gained * extends_longest
    if is_rate.any():
        extended = before + 1.0
        # It is never below 0, since distance and extended length are at least 1.
        rate = (alone + torch.log2(extended)) / extended
        cost = torch.where(is_rate[:, None], rate, cost)
    saved = (math.log2(vocab_size) - cost).clamp_min_(0.0)
    return saved.masked_fill_(column >= length[:, None], 0.0)


def subtract_savings(logits: Tensor, rows: Tensor, window: Tensor, savings: Tensor) -> None:
    """Lower, in place, each seen token's logit by the largest saving among its columns.

    A token that occurs several times in a window gets its largest saving (docs/SPEC.md section 2,
    "The update"). Writing minima straight into the logits achieves this. It needs no buffer as wide
    as the vocabulary, and any order of the reduction gives the same bits.

    Args:
        logits: float32 [batch, V], with any strides; changed in place.
        rows: which logits rows the windows belong to, int64 [rows].
        window: tokens, integer [rows, width]; ids outside [0, V) are ignored.
        savings: alpha times the saved bits, float32 [rows, width]; 0 leaves a logit unchanged.
    """
    batch, vocab_size = logits.shape
    row_stride, token_stride = logits.stride()
    extent = (batch - 1) * row_stride + (vocab_size - 1) * token_stride + 1
    flat = logits.as_strided((extent,), (1,))
    least, greatest = window.aminmax()
    if least < 0 or greatest >= vocab_size:
        unknown = (window < 0) | (window >= vocab_size)
        window, savings = window.masked_fill(unknown, 0), savings.masked_fill(unknown, 0.0)
    index = (rows[:, None] * row_stride + window * token_stride).flatten()
    lowered = flat.index_select(0, index) - savings.flatten()
    flat.scatter_reduce_(0, index, lowered, reduce="amin")
