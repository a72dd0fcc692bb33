"""The steps of the penalties that run in a server: `cuda` in Triton, `cpu` in numba.

Both have the functions `seed`, `step`, `verify` and `accept`. Their arguments are described in
`lz_penalty.reference.steps`, which computes the same results with torch operators. If they also
receive the histories of the other penalties (`history`), they apply those too, using `history_cuda`
and `history_cpu`; the tests compare these with the definitions in docs/PENALTIES.md. `seed_history`
gives rows their histories, and `forbid` does the part that must wait for a grammar's mask.
"""

from __future__ import annotations

import importlib
import itertools
from array import array
from collections.abc import Collection
from types import ModuleType

import numpy as np
import torch

from lz_penalty.draft_tree import AcceptedPaths, DraftTrees
from lz_penalty.fields.lz import DEFAULT_WINDOW_SIZE
from lz_penalty.history import (
    BREAKERS,
    NUMBERS,
    RING,
    SPARE,
    STRENGTHS,
    TOKENS,
    HistoryRoom,
    HistorySeed,
    HistoryState,
)
from lz_penalty.window import RowWindow, StepInputs, WindowState


def import_for(device: torch.device) -> ModuleType:
    """Import the kernels for a device, together with the compiler that they need."""
    return importlib.import_module(f"{__name__}.{'cpu' if device.type == 'cpu' else 'cuda'}")


def warm_up(
    kernels: ModuleType, capacity: int, device: torch.device, tree_sizes: Collection[int]
) -> None:
    """Compile what a server will need before it serves, using a row without the penalty.

    Args:
        kernels: the kernels for `device`.
        capacity: the largest window, in tokens.
        device: where the server runs.
        tree_sizes: the possible numbers of nodes in its draft trees; empty without speculation.
    """
    state = WindowState(1, capacity, device)
    words = 3 + 2 * SPARE
    nodes = max({1, *tree_sizes})
    room = HistoryRoom(1, words=words, nodes=nodes, lists=1, logits=max(2, nodes))
    none = torch.zeros(2, dtype=torch.int64, device=device)
    row = np.zeros(1, dtype=np.int64)
    # Without tokens, numba's part would not be called.
    kernels.seed(state, {0: RowWindow(array("q", [0]), length=1)})
    numbers = np.zeros(NUMBERS, dtype=np.int32)
    numbers[RING], numbers[TOKENS], numbers[BREAKERS] = SPARE, 1, -1
    ids, strengths = numbers[:0], np.ones(len(STRENGTHS), dtype=np.float32)
    cleared = HistoryState(1, device, room)
    kernels.seed_history(cleared, [HistorySeed(0, 0, row, numbers, strengths, ids, words)])
    cleared.clear([0])
    # Upstream slices off the vocabulary's padding, and numba compiles other code for such rows.
    shapes = [torch.zeros(max({2, *tree_sizes}), columns, device=device) for columns in (1, 2)]
    widths = {min(DEFAULT_WINDOW_SIZE, capacity), capacity}
    for width, wide, history in itertools.product(widths, shapes, (None, cleared)):
        logits = wide[:, :1]
        if history is not None:
            kernels.forbid(history, logits[:2])
        inputs = StepInputs(none, none, none, prefilled=0, offset=0)
        kernels.step(state, logits[:2], inputs, width=width, history=history)
        for nodes, depth in {(size, depth) for size in tree_sizes for depth in (1, size)}:
            tree = torch.zeros(1, nodes, dtype=torch.int64, device=device)
            trees = DraftTrees(none[:1], none[:1], tree, tree, tree, depth)
            paths = kernels.verify(state, logits[:nodes], trees, width=width, history=history)
            accepted = AcceptedPaths(none[:1], none[:1], paths, tree.int(), none[:1].int())
            kernels.accept(state, accepted, width=width, history=history)
