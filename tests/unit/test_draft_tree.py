"""The paths of draft tree nodes against the definition, read plainly, and their windows."""

from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from oracle import match_lengths
from sglang_lz.penalty import draft_tree
from sglang_lz.penalty.reference import codelength
from sglang_lz.penalty.reference import steps as reference
from sglang_lz.penalty.reference.window_view import WindowView
from sglang_lz.penalty.window import COVER

WIDTH = 10


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Parents of the nodes of a tree; node 0 is the root, the others stand in any order."""
    nodes = draw(st.integers(1, 9))
    parent = [0] + [draw(st.integers(0, node - 1)) for node in range(1, nodes)]
    name = [0, *draw(st.permutations(range(1, nodes)))]
    shuffled = [0] * nodes
    for node in range(1, nodes):
        shuffled[name[node]] = name[parent[node]]
    return shuffled


def links(parent: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First child and next sibling of each node, siblings in any order."""
    first, sibling = [-1] * len(parent), [-1] * len(parent)
    for node in range(len(parent)):
        children = [child for child in range(1, len(parent)) if parent[child] == node]
        random.Random(seed).shuffle(children)
        for elder, younger in zip([None, *children], children, strict=False):
            if elder is None:
                first[node] = younger
            else:
                sibling[elder] = younger
    return torch.tensor([first]), torch.tensor([sibling])


def path(parent: list[int], node: int) -> list[int]:
    """The nodes below the root on the way to this one, oldest first."""
    return [] if node == 0 else [*path(parent, parent[node]), node]


@given(parent=trees(), seed=st.integers(0, 9))
def test_parents_follow_from_links(parent: list[int], seed: int) -> None:
    assert draft_tree.parents(*links(parent, seed)).tolist() == [parent]


def test_a_node_outside_the_tree_is_a_child_of_the_root() -> None:
    first, sibling = torch.tensor([[1, -1, -1, -1]]), torch.full((1, 4), -1)
    assert draft_tree.parents(first, sibling).tolist() == [[0, 0, 0, 0]]


@given(
    parent=trees(),
    history=st.lists(st.integers(0, 2), max_size=20),
    drafts=st.lists(st.integers(0, 2), min_size=9, max_size=9),
    window=st.integers(1, WIDTH),
    data=st.data(),
)
def test_each_node_sees_the_committed_tokens_and_its_own_ancestors(
    parent: list[int],
    history: list[int],
    drafts: list[int],
    window: int,
    data: st.DataObject,
) -> None:
    buffer, spare = data.draw(st.integers(1, window)), data.draw(st.integers(0, 2))
    seen = history[-window:]
    newest_first = torch.zeros(1, WIDTH, dtype=torch.int32)
    newest_first[0, : len(seen)] = torch.tensor(seen[::-1])
    run = codelength.run_lengths(torch.tensor(history, dtype=torch.int64), window)
    run = torch.nn.functional.pad(run, (0, WIDTH - window)).to(torch.int16)[None]
    params = torch.tensor([[0.15, window, buffer, 0, 0, 0]])
    cover = torch.zeros((1, COVER), dtype=torch.int64)
    before = WindowView(newest_first, run, torch.tensor([len(history)]), params, cover)
    tokens = drafts[: len(parent)]
    depth = max(len(path(parent, node)) for node in range(len(parent))) + 1 + spare

    paths, lengths = draft_tree.paths(torch.tensor([tokens]), *links(parent, 0), depth)

    for node in range(len(parent)):
        on_path = [tokens[i] for i in [*reversed(path(parent, node)), 0]]
        assert paths[0, node, : len(on_path)].tolist() == on_path
        assert lengths[0, node] == len(on_path)
    windows = reference.advance_along(
        before[torch.zeros(1, len(parent), dtype=torch.int64)], paths, lengths
    )
    for node in range(len(parent)):
        expected = [*history, tokens[0], *(tokens[i] for i in path(parent, node))][-window:]
        count = int(windows.length[0, node])
        assert count == len(expected)
        assert windows.tokens[0, node, :count].tolist() == expected[::-1]
        lengths = [0, *match_lengths(expected, buffer)[::-1]][:count]
        assert windows.match[0, node, :count].tolist() == lengths
