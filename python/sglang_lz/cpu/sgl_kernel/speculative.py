"""Token bookkeeping of speculative decoding. Draft trees are not covered on a CPU yet."""

from typing import Any, NoReturn

import torch


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """Take each request's last accepted token.

    Args:
        accept_tokens: (B * accept_stride,) int in any shape, row by row.
        accept_lens: (B,) int >= 1, how many of a row are accepted.
        bonus_tokens: (B,) int, written.
        accept_stride: width of a row of `accept_tokens`.
    """
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last])


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's ids left by one and put its next token at the end, in place.

    Args:
        input_ids: (sum of lengths,) int, written.
        extend_start_loc: (B,) int, where a request's ids begin.
        extend_seq_lens: (B,) int, how many it has; nothing is done for 0.
        topk_index: (B,) int in any shape, the next token of each request.
        select_index: (B,) int, where to put that token instead of the request's last place.
    """
    lengths = extend_seq_lens.long()
    first = extend_start_loc.long()
    last = first + lengths - 1
    request = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    place = torch.arange(request.numel()) + (first - (lengths.cumsum(0) - lengths))[request]
    moved = place[place < last[request]]
    input_ids[moved] = input_ids[moved + 1]

    present = lengths > 0
    target = last if select_index is None else select_index.long()
    input_ids[target[present]] = topk_index.reshape(-1)[present].to(input_ids.dtype)


def _no_draft_trees(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: speculative decoding with draft trees is not supported by the CPU wheel"
    )


def build_tree_kernel_efficient_cpu(*args: Any, **kwargs: Any) -> NoReturn:
    """Importable only: raises NotImplementedError."""
    _no_draft_trees("build_tree_kernel_efficient_cpu")


def verify_tree_greedy_cpu(*args: Any, **kwargs: Any) -> NoReturn:
    """Importable only: raises NotImplementedError."""
    _no_draft_trees("verify_tree_greedy_cpu")


def reconstruct_indices_from_tree_mask(*args: Any, **kwargs: Any) -> NoReturn:
    """Importable only: raises NotImplementedError."""
    _no_draft_trees("reconstruct_indices_from_tree_mask")
