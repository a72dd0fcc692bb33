"""Forced tokens in a draft tree: where they are written, and which drafts are kept."""

from __future__ import annotations

import random

import pytest

from sglang_lz.constraints.drafts import _children, _put_on_path


def linked(parents: list[int]) -> tuple[list[int], list[int]]:
    """Each node's first child and next sibling, as upstream links them, from each node's parent."""
    child, sibling = [-1] * len(parents), [-1] * len(parents)
    last: dict[int, int] = {}
    for node, parent in enumerate(parents[1:], 1):
        if parent in last:
            sibling[last[parent]] = node
        else:
            child[parent] = node
        last[parent] = node
    return child, sibling


def tokens_below(parents: list[int], tokens: list[int], node: int) -> list[int]:
    return [tokens[k] for k in range(1, len(parents)) if parents[k] == node]


@pytest.mark.parametrize("seed", range(50))
def test_a_run_lies_on_a_path(seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.randrange(2, 12)
    parents = [-1] + [rng.randrange(k) for k in range(1, nodes)]
    tokens = [0] * nodes
    for node in range(nodes):
        below = [k for k in range(1, nodes) if parents[k] == node]
        for k, token in zip(below, rng.sample(range(20), len(below)), strict=True):
            tokens[k] = token
    depth = [0] * nodes
    for k in range(1, nodes):
        depth[k] = depth[parents[k]] + 1
    run = [rng.randrange(20) for _ in range(rng.randrange(nodes + 2))]
    child, sibling = linked(parents)
    _put_on_path(tokens, child, sibling, run)
    reached = [0]
    for token in run[: max(depth)]:
        reached = [
            k for node in reached for k in _children(child, sibling, node) if tokens[k] == token
        ]
    assert reached, "the run, as far as the tree is deep"
    for node in range(nodes):
        below = tokens_below(parents, tokens, node)
        assert len(set(below)) == len(below), "siblings differ"


def test_no_run_leaves_the_tree() -> None:
    tokens = [1, 2, 3, 4]
    _put_on_path(tokens, *linked([-1, 0, 0, 1]), [])
    assert tokens == [1, 2, 3, 4]


def test_a_sibling_with_the_forced_token_gets_the_replaced_one() -> None:
    """The drafter proposed the forced token at a leaf; the two siblings' tokens are exchanged."""
    tokens = [1, 2, 3, 4]
    _put_on_path(tokens, *linked([-1, 0, 0, 1]), [3, 9])
    assert tokens == [1, 3, 2, 9]


def test_drafts_after_a_forced_token_are_kept() -> None:
    """The forced token is not on the longest path, but the whole run fits below it."""
    tokens = [1, 2, 3, 4, 5, 6]
    links = linked([-1, 0, 0, 1, 2, 3])
    _put_on_path(tokens, *links, [3])
    assert tokens == [1, 2, 3, 4, 5, 6]
    _put_on_path(tokens, *links, [3, 8])
    assert tokens == [1, 2, 3, 4, 8, 6]
    _put_on_path(tokens, *links, [3, 8, 9])
    assert tokens == [1, 3, 2, 8, 8, 9]
