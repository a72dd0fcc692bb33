"""Uses forced tokens as drafts, so that a run of them costs only one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sglang_lz.constraints.grammar import walk_of


def offer_forced_tokens(
    reqs: Sequence[Any], drafts: npt.NDArray[Any], mask: npt.NDArray[Any]
) -> None:
    """Replace n-gram drafts with the tokens that a constraint forces (upstream's hook).

    Args:
        reqs: upstream's requests, whose grammars have accepted all tokens so far.
        drafts: [requests * nodes], changed in place: the tokens of each request's tree.
        mask: [requests * nodes * nodes], changed in place: whether a node sees another.
    """
    nodes = len(drafts) // len(reqs)
    trees, masks = drafts.reshape(-1, nodes), mask.reshape(-1, nodes, nodes)
    for req, tree, seen in zip(reqs, trees, masks, strict=True):
        walk = walk_of(req.grammar)
        run = walk.forced_run(nodes - 1) if walk is not None else []
        if not run:
            continue
        # The rest is padded in upstream's way, with children of the root that have token 0.
        tree[1:] = [*run, *[0] * (nodes - 1 - len(run))]
        seen[:] = np.eye(nodes)
        seen[:, 0] = 1
        chain = len(run) + 1
        seen[:chain, :chain] = np.tri(chain)


def force_drafts(batch: Any, verify: Any, barrier: Callable[[], None] | None) -> None:
    """Replace a draft model's drafts with the tokens that a constraint forces (upstream's hook).

    The tree keeps its shape: the tokens are written along a path that is long enough, if there is
    one. A forced token is the only one that the target model may sample, so it is accepted. The
    drafts do not change what the target model samples.

    Args:
        batch: upstream's ScheduleBatch.
        verify: its EagleVerifyInput; `draft_token`, [requests * nodes], and with rejection sampling
            also `draft_probs`, [requests, nodes - 1, V], are changed in place.
        barrier: makes the grammars accept the tokens of the previous step; None if they have
            already done so.
    """
    runs = _forced_runs(batch, verify.spec_steps, barrier)
    if not any(runs):
        return
    child = verify.retrieve_next_token.tolist()
    sibling = verify.retrieve_next_sibling.tolist()
    drafts = verify.draft_token.view(len(child), -1).tolist()
    for row, run in enumerate(runs):
        _put_on_path(drafts[row], child[row], sibling[row], run)
        if verify.draft_probs is not None and run:  # the drafts are a chain
            verify.draft_probs[row, : len(run)] = 0
            verify.draft_probs[row, range(len(run)), run] = 1
    verify.draft_token.copy_(verify.draft_token.new_tensor(drafts).view_as(verify.draft_token))


def force_block(
    batch: Any, tokens: torch.Tensor, barrier: Callable[[], None] | None, drawn: Any
) -> None:
    """Replace the drafts of a block with the tokens that a constraint forces (upstream's hook).

    As in `force_drafts`, for a chain. A sampled draft is judged against the distribution that it
    was drawn from. For a forced token, that becomes the one in which it has probability 1.

    Args:
        batch: upstream's ScheduleBatch.
        tokens: [requests, nodes], the newest token and the drafts; changed in place.
        barrier: as in `force_drafts`.
        drawn: what the drafts were drawn from, changed in place. DFLASH has ids and probabilities,
            each [requests, nodes - 1, candidates], or None. DSPARK has its DraftBlockResult:
            `draft_tokens`, [requests, nodes - 1], and `corrected_logits`,
            [requests, nodes - 1, V], or None.
    """
    for row, run in enumerate(_forced_runs(batch, tokens.shape[1] - 1, barrier)):
        if not run:
            continue
        forced = tokens.new_tensor(run)
        count = len(run)
        tokens[row, 1 : 1 + count] = forced
        if isinstance(drawn, tuple):
            ids, probabilities = drawn
            ids[row, :count] = forced[:, None]
            probabilities[row, :count] = 1.0
        elif drawn is not None:
            drawn.draft_tokens[row, :count] = forced
            if drawn.corrected_logits is not None:
                drawn.corrected_logits[row, :count] = -torch.inf
                drawn.corrected_logits[row, :count].scatter_(1, forced[:, None], 0.0)


def _forced_runs(batch: Any, most: int, barrier: Callable[[], None] | None) -> list[list[int]]:
    """The tokens that are forced next in each request; empty if there are none at all."""
    from sglang.srt.runtime_context import get_parallel

    # With pipeline parallelism, earlier stages have already processed the drafts.
    if (
        not any(req.sampling_params.proper_tokens for req in batch.reqs)
        or get_parallel().pp_size > 1
    ):
        return []
    if barrier is not None:
        barrier()
    walks = [walk_of(req.grammar) for req in batch.reqs]
    return [[] if walk is None else walk.forced_run(most) for walk in walks]


def _put_on_path(
    tokens: list[int], child: Sequence[int], sibling: Sequence[int], run: Sequence[int]
) -> None:
    """Write a run of tokens along a path of a tree, as far as the tree is deep enough.

    Among the paths that are long enough, one that already has these tokens is preferred, because
    the drafter's proposals below it were made for them.

    Args:
        tokens: the token of each node, changed in place.
        child, sibling: the first child and the next sibling of each node, -1 for none.
        run: the tokens after the root.
    """
    height = [1] * len(tokens)
    for node in range(len(tokens) - 1, -1, -1):  # children come after their parents
        height[node] += max((height[k] for k in _children(child, sibling, node)), default=0)
    node = 0
    for i, token in enumerate(run):
        children = list(_children(child, sibling, node))
        if not children:
            return
        ranks = {k: (min(height[k], len(run) - i), tokens[k] == token, height[k]) for k in children}
        node = max(children, key=ranks.__getitem__)
        # Siblings must differ, so one that has this token already gets the replaced token instead.
        for other in children:
            if tokens[other] == token:
                tokens[other] = tokens[node]
        tokens[node] = token


def _children(child: Sequence[int], sibling: Sequence[int], node: int) -> Iterator[int]:
    k = child[node]
    while k >= 0:
        yield k
        k = sibling[k]
