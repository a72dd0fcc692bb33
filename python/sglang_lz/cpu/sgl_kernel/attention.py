"""Attention in torch, under the names of the Intel AMX kernels that SGLang's CPU backend calls.

They are needed for speculative decoding, which upstream supports on a CPU only with AMX. They
implement everything its backend uses except attention sinks, logit caps, cross-attention, windows
of bidirectional attention and an 8-bit cache, and raise NotImplementedError for those.

Shapes: B requests; H query heads and G key/value heads of width E (values: F); K slots in the KV
cache; S rows and T columns in `req_to_token`. The signatures are those of the kernels, and these
arguments mean the same in each:

    output: (tokens, H, F) float, written.
    k_buffer: (K, G, E) float, the keys in the cache; v_buffer: (K, G, F) float, the values.
    k_scale, v_scale: must be 1.
    req_to_token: (S, T) int32, the slot of every token of a row.
    req_pool_indices: (B,) int, row of each request.
    seq_lens: (B,) int, tokens of each request with the new ones.
    sm_scale: factor of the scores.
    logit_cap, is_cross_attn, sinks: must be 0, false and None.
    sliding_window: how many of the newest tokens one sees, itself included; 0 = all.
    max_len_extend, encoder_lens, attn_logits: not used here.
"""
# ruff: noqa: PLR0917 (the signatures are those of the kernels)

import torch
from torch.library import custom_op
from torch.nn.functional import scaled_dot_product_attention


def _refuse(**wanted: object) -> None:
    names = [name for name, value in wanted.items() if value]
    if names:
        raise NotImplementedError(
            f"{', '.join(names)}: not supported by speculative decoding on a CPU"
        )


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention of one request: (L, H, F) from (L, H, E), (M, G, E) and (M, G, F), all float.

    `visible` is (L, M) bool; None = all.
    """
    q, k, v = (x.to(query.dtype).transpose(0, 1)[None] for x in (query, keys, values))
    grouped = query.shape[1] != keys.shape[1]
    result = scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=scale, enable_gqa=grouped
    )
    return result[0].transpose(0, 1)


def _visible(tree: torch.Tensor, prefix: int, window: int) -> torch.Tensor:
    """Which tokens each node of a tree sees: the prefix and its ancestors, or the newest of them.

    `tree` is (N, N) bool, [i, j] = node i sees node j, itself included; returns (N, prefix + N).
    """
    visible = torch.cat([torch.ones(len(tree), prefix, dtype=torch.bool), tree], 1)
    if window > 0:
        place = prefix + tree.sum(1) - 1
        places = torch.cat([torch.arange(prefix), place])
        visible &= places > place[:, None] - window
    return visible


@custom_op("sgl_kernel::extend_attention_cpu", mutates_args=("output",), device_types="cpu")
def extend_attention_cpu(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    output: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Attention of several new tokens per request: a prefill, a chunk of one, or a draft tree.

    Args:
        query: (tokens, H, E) float, request after request.
        key: (tokens, G, E) float in any shape, of the new tokens; None = in the cache already.
        value: (tokens, G, F) float, likewise.
        req_pool_indices: rows beyond `seq_lens` pad the batch; the output of their tokens is 0.
        extend_seq_lens: (B,) int, how many tokens are new.
        extend_start_loc: (B,) int, where a request's new tokens begin in `query`.
        tree_mask: (B * N * N,) bool, [i, j] = node i sees node j, if N tokens are new for each
            request; None = as `is_causal` says. Requests beyond it pad the batch, as chains.
        is_causal: whether a new token sees only those before it, or all of its request's.
    """
    _refuse(
        logit_cap=logit_cap,
        cross_attention=is_cross_attn,
        sinks=sinks is not None,
        bidirectional_window=not is_causal and sliding_window > 0,
        scaled_cache=(k_scale, v_scale) != (1.0, 1.0),
    )
    rows = req_pool_indices[: len(seq_lens)]
    lengths = (rows, seq_lens, extend_seq_lens, extend_start_loc)
    output[int(extend_seq_lens.sum()) :] = 0
    for request, (row, total, new, start) in enumerate(
        zip(*(x.tolist() for x in lengths), strict=True)
    ):
        prefix, here = total - new, slice(start, start + new)
        slots = req_to_token[row, :total]
        keys, values = k_buffer[slots], v_buffer[slots]
        if key is not None and value is not None:
            keys[prefix:] = key[here].reshape(keys[prefix:].shape)
            values[prefix:] = value[here].reshape(values[prefix:].shape)
        if tree_mask is None or request * new * new >= tree_mask.numel():
            tree = torch.ones(new, new, dtype=torch.bool)
            tree = tree.tril() if is_causal else tree
        else:
            tree = tree_mask.view(-1, new, new)[request].bool()
        visible = _visible(tree, prefix, sliding_window)
        output[here] = _attend(query[here], keys, values, visible, sm_scale)


@custom_op(
    "sgl_kernel::decode_attention_cpu",
    mutates_args=("k_buffer", "v_buffer", "output"),
    device_types="cpu",
)
def decode_attention_cpu(
    query: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Attention of one new token per request, whose key and value are written to the cache first.

    Args:
        query: (B, H, E) float.
        key: (B, G, E) float in any shape; None = in the cache already.
        value: (B, G, F) float, likewise.
        loc: (B,) int, slots of the new tokens in `k_buffer` and `v_buffer`.
    """
    _refuse(
        logit_cap=logit_cap,
        cross_attention=is_cross_attn,
        sinks=sinks is not None,
        scaled_cache=(k_scale, v_scale) != (1.0, 1.0),
    )
    for new, buffer in ((key, k_buffer), (value, v_buffer)):
        if new is not None:
            buffer[loc] = new.reshape(-1, *buffer.shape[1:]).to(buffer.dtype)
    for request, (row, total) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        slots = req_to_token[row, max(0, total - sliding_window) if sliding_window else 0 : total]
        one = slice(request, request + 1)
        output[one] = _attend(query[one], k_buffer[slots], v_buffer[slots], None, sm_scale)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """Give each branch of a draft its own row of slots.

    Args:
        req_to_token: after a request's tokens come the slots of its first branch, `num_steps` of
            them, then those of its second.
        seq_lens: without the draft.
        topk: branches of a request.
        num_steps: drafted tokens of a branch.
        pool_len: T.

    Returns:
        (B * topk, T) int32: the request's tokens, then the branch's; what follows is not defined.
    """
    rows = req_to_token[req_pool_indices.long()].repeat_interleave(topk, 0)
    first = seq_lens.long().repeat_interleave(topk)[:, None] + torch.arange(num_steps)
    branch = torch.arange(topk).repeat(len(seq_lens))[:, None]
    drafted = rows.gather(1, (first + branch * num_steps).clamp(max=pool_len - 1))
    return rows.scatter_(1, first.clamp(max=pool_len - 1), drafted)
