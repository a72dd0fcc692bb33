"""Assigns KV cache slots to tokens, and moves the contents of slots.

The signatures are those of the kernels. In each, `req_pool_indices` (B,) int is the row of every
request in `req_to_token` (S, T) int32, which has the slot of every token; `pool_len` is T.
"""
# ruff: noqa: PLR0917 (the signatures are those of the kernels)

import ctypes

import torch


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy cache slots `src_loc` to `tgt_loc` in every layer's buffer.

    All sources are read before any target is written, so the two may overlap.

    Args:
        data_ptrs: (L,) uint64, address of each contiguous buffer (keys and values of a layer).
        strides: (L,) int64, bytes of one slot in each buffer.
        tgt_loc: (N,) int, distinct slots to write.
        src_loc: (N,) int, slots to read.
    """
    if tgt_loc.numel() == 0:
        return
    target, source = tgt_loc.long(), src_loc.long()
    slots = int(torch.maximum(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[target] = buffer[source]


def _pool_entries(
    req_pool_indices: torch.Tensor, start: torch.Tensor, end: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column in `req_to_token` of every token in `[start, end)`, request after request."""
    lengths = (end - start).long()
    rows = torch.repeat_interleave(req_pool_indices.long(), lengths)
    first = lengths.cumsum(0) - lengths  # where each request's tokens begin in the flat order
    columns = torch.arange(rows.numel()) + torch.repeat_interleave(start.long() - first, lengths)
    return rows, columns


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Record the slots of new tokens: `req_to_token[r, start:end] = next slots`, per request.

    Args:
        start_offset: (B,) int, first position of each request's new tokens.
        end_offset: (B,) int, one past the last.
        out_cache_loc: (>= sum(end - start),) int, the slots, request after request.
    """
    rows, columns = _pool_entries(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the slots back: the inverse of `assign_req_to_token_pool_cpu`, same arguments.

    Writes the first `sum(end - start)` items of `out_cache_loc`; the rest stays.
    """
    rows, columns = _pool_entries(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Read the `topk * speculative_num_steps` slots that follow each request's sequence.

    Args:
        seq_lens: (B,) int, position of the first slot to read.
        out_cache_loc: (B * topk * speculative_num_steps,) int, written.
    """
    end = seq_lens + topk * speculative_num_steps
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, end, out_cache_loc, pool_len
    )


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Pack the slots of accepted draft tokens to the front of `accept_out_cache_loc`.

    Args:
        accept_index: any shape, int; index into `out_cache_loc`, -1 = not accepted.
        out_cache_loc: (N,) int, slots of all draft tokens.
        accept_out_cache_loc: (>= accepted,) int, written from its beginning; the rest stays.
    """
    flat = accept_index.reshape(-1)
    accepted = out_cache_loc[flat[flat >= 0].long()]
    accept_out_cache_loc[: accepted.numel()] = accepted.to(accept_out_cache_loc.dtype)
