"""Uses forced tokens as drafts, so that a run of them costs only one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
