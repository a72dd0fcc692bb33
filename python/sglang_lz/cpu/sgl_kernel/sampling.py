"""Sampling: random numbers from a seed, and the acceptance of draft tokens.

Shapes: V tokens in the vocabulary; B requests with a tree of N nodes each. What is not described
here is as in `speculative`; thresholds below 1 accept more drafts, and so distort the distribution.
"""
# ruff: noqa: PLR0917 (the signatures are those of the kernels)

import torch
from torch.library import custom_op

from .speculative import write_paths

_32_BITS = 0xFFFFFFFF


@custom_op("sgl_kernel::murmur_hash32_cpu", mutates_args=(), device_types="cpu")
def murmur_hash32_cpu(
    seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
    """The 32-bit MurmurHash3, its own seed 0, of (seed, position, column): 8, 4 and 4 bytes.

    Source: Appleby, https://github.com/aappleby/smhasher, MurmurHash3_x86_32, public domain.

    Args:
        seed: (B,) uint64.
        positions: (B,) int.
        col_indices: (V,) int.

    Returns:
        (B, V) uint32.
    """
    seed = seed.view(torch.int64)  # most operators know no uint64
    hashed = torch.zeros_like(seed)
    for block in (seed, seed >> 32, positions.long()):
        hashed = _mixed(hashed, block & _32_BITS)
    hashed = _mixed(hashed[:, None], col_indices.long()[None] & _32_BITS) ^ 16
    # The products of 32 bits overflow 64 and wrap around, which leaves the low 32 as they are.
    hashed = ((hashed ^ hashed >> 16) * 0x85EBCA6B) & _32_BITS
    hashed = ((hashed ^ hashed >> 13) * 0xC2B2AE35) & _32_BITS
    return (hashed ^ hashed >> 16).to(torch.uint32)


def _mixed(hashed: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """A state and a block of MurmurHash3, both int64 in [0, 2**32), mixed."""
    block = _rotated(block * 0xCC9E2D51 & _32_BITS, 15) * 0x1B873593 & _32_BITS
    return (_rotated(hashed ^ block, 13) * 5 + 0xE6546B64) & _32_BITS


def _rotated(value: torch.Tensor, bits: int) -> torch.Tensor:
    return (value << bits | value >> 32 - bits) & _32_BITS


def _keep(probs: torch.Tensor, order: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Drop all but `kept` of the probabilities in `order` (R, V each); each row sums to 1 again."""
    mask = torch.zeros_like(kept).scatter_(1, order, kept)
    remaining = torch.where(mask, probs, 0.0)
    return remaining / remaining.sum(1, keepdim=True)


def top_k_renorm_prob(probs: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """Keep the k most likely tokens of each row; among equally likely ones, the lowest ids.

    `probs` is (R, V) float, `top_ks` (R,) int >= 1; returns (R, V), each row a distribution.
    """
    order = probs.argsort(dim=1, descending=True, stable=True)
    return _keep(probs, order, torch.arange(probs.shape[1]) < top_ks[:, None])


def top_p_renorm_prob(probs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Keep the most likely tokens of each row, up to the one with which their total exceeds p.

    `probs` is (R, V) float, each row a distribution, `top_ps` (R,) float in (0, 1]; returns alike.
    """
    ranked, order = probs.sort(dim=1, descending=True, stable=True)
    return _keep(probs, order, ranked.cumsum(1) - ranked <= top_ps[:, None])


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Walk down from each root at random, so that every token follows the target's distribution.

    One number in [0, 1) chooses among the children of a node: each child has the share of [0, 1)
    that the target model gives its token, in the order of siblings. If the number is in none of
    these shares, or there is no child, the path ends, and the last token is drawn from the target's
    distribution without those children.

    Args:
        uniform_samples: (B, N) float32 in [0, 1), the number for the children of every node.
        uniform_samples_for_final_sampling: (B,) float32 in [0, 1).
        target_probs: (B, N, V) float, distribution of the token after every node.
        draft_probs: not read: the drafted tokens are taken as given, whatever chose them.
        threshold_single: accept a child at least this likely.
        threshold_acc: divides the share of a child, if below 1.
        deterministic: not read.
    """
    batch, width = accept_index.shape
    totals = target_probs.sum(2, dtype=torch.float64).tolist()  # 1 but for rounding
    trees = (candidates, retrive_next_token, retrive_next_sibling, uniform_samples)
    last_probs = torch.empty(batch, target_probs.shape[2], dtype=torch.float64)
    paths = []
    for request, (tokens, first_child, sibling, coins) in enumerate(
        zip(*(tree.tolist() for tree in trees), strict=True)
    ):
        accepted, refused = [0], list[int]()
        while len(accepted) < width:
            here, share = accepted[-1], 0.0
            node = first_child[here]
            while node >= 0:
                prob = float(target_probs[request, here, tokens[node]])
                share += prob
                chosen = coins[here] * totals[request][here] * threshold_acc < share
                if chosen or prob >= threshold_single:
                    accepted.append(node)
                    refused.clear()
                    break
                refused.append(tokens[node])
                node = sibling[node]
            else:
                break
        paths.append(accepted)
        last_probs[request] = target_probs[request, accepted[-1]]
        last_probs[request, refused] = 0.0

    last = _drawn(last_probs, uniform_samples_for_final_sampling)
    write_paths(paths, last, candidates, retrive_index, predicts, accept_index, accept_token_num)


def chain_speculative_sampling_triton(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Rejection sampling of a chain whose tokens were drawn from the draft's distributions.

    Source: Leviathan et al., https://arxiv.org/abs/2211.17192, algorithm 1.

    Args:
        accept_index: D is N.
        retrive_next_token: not read, as the siblings: a chain needs no links.
        uniform_samples: (B, N) or (B, N - 1) float32 in [0, 1), the number for the child of every
            node; that of the last is not read.
        uniform_samples_for_final_sampling: (B,) float32 in [0, 1).
        target_probs: (B, N, V) float, distribution of the token after every node.
        draft_probs: (B, N - 1, V) float, distribution that the child of every node is from.
        threshold_single: not read, as the other threshold and `deterministic`.
    """
    batch, nodes = candidates.shape
    drafted = candidates[:, 1:, None].long()
    target = target_probs[:, :-1].gather(2, drafted)[:, :, 0]
    draft = draft_probs.gather(2, drafted)[:, :, 0]
    is_drawn = draft > 0  # upstream's kernel takes nothing else for a draft
    kept = is_drawn & (uniform_samples[:, : nodes - 1] * draft < target)
    counts = kept.int().cumprod(1).sum(1).tolist()
    last_probs = torch.empty(batch, target_probs.shape[2], dtype=torch.float64)
    for request, count in enumerate(counts):
        last_probs[request] = target_probs[request, count]
        if count < nodes - 1:
            last_probs[request] -= draft_probs[request, count]
    paths = [list(range(count + 1)) for count in counts]
    last = _drawn(last_probs.clamp_(min=0.0), uniform_samples_for_final_sampling)
    write_paths(paths, last, candidates, retrive_index, predicts, accept_index, accept_token_num)


def _drawn(weights: torch.Tensor, coins: torch.Tensor) -> torch.Tensor:
    """One token of each row of weights (B, V) float64, by a number in [0, 1)."""
    ends = weights.cumsum(1)
    drawn = torch.searchsorted(ends, coins.double()[:, None] * ends[:, -1:], right=True)
    return drawn[:, 0].clamp(max=ends.shape[1] - 1)
