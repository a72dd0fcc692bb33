"""Attention in torch, under the names of the Intel AMX kernels that SGLang's CPU backend calls.

Shapes: B requests; H query heads and G key/value heads of width E (values: F); K slots in the KV
cache; S rows and T columns in `req_to_token` (S, T) int32, the slot of every token of a row.

They are needed for speculative decoding, which upstream supports on a CPU only with AMX. They
implement everything its backend uses except attention sinks, logit caps, cross-attention, windows
of bidirectional attention and an 8-bit cache.
"""
# ruff: noqa: PLR0917 (the signatures are those of the kernels)

from collections.abc import Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

from .operators import operator

_MOST_SCORES = 1 << 20
"""Of one head, in a call for several requests; only a single request may have more."""
_LEAST_ROWS = 16
"""Rows of scores that are counted for a request at least: its keys and values take memory, too."""


def _refuse(**wanted: object) -> None:
    """Raise NotImplementedError if anything is wanted that these kernels do not do."""
    names = [name for name, value in wanted.items() if value]
    if names:
        raise NotImplementedError(
            f"{', '.join(names)}: not supported by speculative decoding on a CPU"
        )


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of requests that have equally many new tokens.

    Args:
        query: (B, L, H, E) float.
        keys: (B, M, G, E) float.
        values: (B, M, G, F) float.
        visible: (B, L, M) bool.
        scale: factor of the scores.

    Returns:
        (B, L, H, F) float.
    """
    q, k, v = (x.to(query.dtype).transpose(1, 2) for x in (query, keys, values))
    grouped = query.shape[2] != keys.shape[2]
    result = scaled_dot_product_attention(
        q, k, v, attn_mask=visible[:, None], scale=scale, enable_gqa=grouped
    )
    return result.transpose(1, 2)


def _visible(
    trees: torch.Tensor, prefixes: torch.Tensor, columns: int, window: int
) -> torch.Tensor:
    """Which tokens each node of a tree sees: what comes before the tree, and its ancestors.

    Args:
        trees: (B, N, N) bool, [b, i, j] = node i sees node j, itself included.
        prefixes: (B,) int, how many tokens come before.
        columns: M, the largest prefix and its tree at least.
        window: how many of the newest tokens on its own way a node sees; 0 = all.

    Returns:
        (B, N, M) bool; false behind the tree.
    """
    nodes = trees.shape[1]
    places = torch.arange(columns).repeat(len(trees), 1)
    visible = (places < prefixes[:, None])[:, None].repeat(1, nodes, 1)
    in_tree = prefixes[:, None] + torch.arange(nodes)
    visible.scatter_(2, in_tree[:, None].expand_as(trees), trees)
    if window > 0:
        place = prefixes[:, None] + trees.sum(2) - 1
        places.scatter_(1, in_tree, place)
        visible &= places[:, None] > place[:, :, None] - window
    return visible


def _groups(new: list[int], columns: int) -> Iterator[list[int]]:
    """The requests that are attended to in one call: equally many new tokens, and bounded memory.

    Most of the time of a small call is not spent on attention.

    Args:
        new: how many tokens of each request are new.
        columns: the most tokens of a request.

    Yields:
        Indices into `new`.
    """
    same: dict[int, list[int]] = {}
    for request, count in enumerate(new):
        if count:
            same.setdefault(count, []).append(request)
    for count, requests in same.items():
        size = max(1, _MOST_SCORES // (max(count, _LEAST_ROWS) * columns))
        yield from (requests[i : i + size] for i in range(0, len(requests), size))


@operator("output")
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
    """Attention of several new tokens a request: a prefill, a chunk of one, or a draft tree.

    Args:
        query: (tokens, H, E) float, request after request.
        key: (tokens, G, E) float in any shape, of the new tokens; None = in the cache already.
        value: (tokens, G, F) float, likewise.
        output: (tokens, H, F) float, written.
        k_buffer: (K, G, E) float, the cache.
        v_buffer: (K, G, F) float, the cache.
        k_scale: must be 1, as v_scale.
        v_scale: see k_scale.
        req_to_token: (S, T) int32.
        req_pool_indices: (B,) int, row of each request. Rows beyond `seq_lens` pad the batch; the
            output of their tokens is 0.
        seq_lens: (B,) int, tokens of each request with the new ones.
        extend_seq_lens: (B,) int, how many are new.
        extend_start_loc: (B,) int, where a request's new tokens begin in `query`.
        max_len_extend: part of the kernel's signature.
        sm_scale: factor of the scores.
        logit_cap: must be 0 (none).
        is_cross_attn: must be false.
        sliding_window: how many of the newest tokens one sees, itself included; 0 = all.
        encoder_lens: part of the kernel's signature.
        sinks: must be None.
        tree_mask: (B * N * N,) bool, [i, j] = node i sees node j, if N tokens are new for each
            request; None = as `is_causal` says. Requests beyond it pad the batch, as chains.
        is_causal: whether a new token sees only those before it, or all of its request's.

    Raises:
        NotImplementedError: something else is asked for.
    """
    _refuse(
        logit_cap=logit_cap,
        cross_attention=is_cross_attn,
        sinks=sinks is not None,
        bidirectional_window=not is_causal and sliding_window > 0,
        scaled_cache=(k_scale, v_scale) != (1.0, 1.0),
    )
    output[int(extend_seq_lens.sum()) :] = 0
    for group in _groups(extend_seq_lens.tolist(), int(seq_lens.max())):
        requests = torch.tensor(group)
        new, totals = int(extend_seq_lens[group[0]]), seq_lens[requests].long()
        columns, prefixes = int(totals.max()), totals - new
        chain = torch.ones(new, new, dtype=torch.bool)
        trees = (chain.tril() if is_causal else chain).repeat(len(group), 1, 1)
        if tree_mask is not None:
            given = tree_mask.view(-1, new, new).bool()
            trees[requests < len(given)] = given[requests[requests < len(given)]]
        slots = req_to_token[req_pool_indices[requests].long(), :columns]
        slots = slots.where(torch.arange(columns) < totals[:, None], slots[:, :1])
        keys, values = k_buffer[slots], v_buffer[slots]
        here = extend_start_loc[requests].long()[:, None] + torch.arange(new)
        if key is not None and value is not None:
            places = (torch.arange(len(group))[:, None], prefixes[:, None] + torch.arange(new))
            keys[places] = key.reshape(-1, *keys.shape[2:])[here].to(keys.dtype)
            values[places] = value.reshape(-1, *values.shape[2:])[here].to(values.dtype)
        visible = _visible(trees, prefixes, columns, sliding_window)
        output[here] = _attend(query[here], keys, values, visible, sm_scale)


@operator("k_buffer", "v_buffer", "output")
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
    """Attention of one new token a request, whose key and value go into the cache first.

    Args:
        query: (B, H, E) float.
        k_buffer: (K, G, E) float, the cache, written at `loc`.
        v_buffer: (K, G, F) float, the cache, written at `loc`.
        k_scale: must be 1, as v_scale.
        v_scale: see k_scale.
        output: (B, H, F) float, written.
        key: (B, G, E) float in any shape; None = in the cache already.
        value: (B, G, F) float, likewise.
        loc: (B,) int, slots of the new tokens.
        attn_logits: the kernel's scratch, not used here.
        req_to_token: (S, T) int32.
        req_pool_indices: (B,) int, row of each request.
        seq_lens: (B,) int, tokens of each request with the new one.
        sm_scale: factor of the scores.
        logit_cap: must be 0 (none).
        is_cross_attn: must be false.
        sliding_window: how many of the newest tokens one sees, itself included; 0 = all.
        encoder_lens: part of the kernel's signature.
        sinks: must be None.

    Raises:
        NotImplementedError: something else is asked for.
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
    places = torch.arange(int(seq_lens.max()))
    for group in _groups([1] * len(seq_lens), len(places)):
        requests = torch.tensor(group)
        totals = seq_lens[requests, None]
        visible = places < totals
        if sliding_window:
            visible &= places >= totals - sliding_window
        slots = req_to_token[req_pool_indices[requests].long(), : len(places)]
        slots = slots.where(visible, slots[:, :1])  # finite, unlike what stands behind the tokens
        output[requests] = _attend(
            query[requests, None], k_buffer[slots], v_buffer[slots], visible[:, None], sm_scale
        )[:, 0]


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """Give each branch of a draft a row of slots of its own.

    Args:
        req_to_token: (S, T) int32; after a request's tokens come the slots of its first branch,
            `num_steps` of them, then those of its second.
        req_pool_indices: (B,) int, row of each request.
        seq_lens: (B,) int, tokens of each request without the draft.
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
