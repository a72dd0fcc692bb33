"""Repairs of upstream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lz.fixes import batches as fixes

OFFSET = 50  # what the step's own chunk counts for


@pytest.mark.parametrize(
    ("free", "decodes", "rest", "expected"),
    [
        (30, 5, 25, True),
        (30, 6, 25, False),
        (5, 5, None, True),
        (4, 5, None, False),
        (30, 0, 25, False),  # nobody decodes
    ],
)
def test_the_rest_of_a_prompt_keeps_its_room(
    free: int, decodes: int, rest: int | None, expected: bool
) -> None:
    budget = SimpleNamespace(remaining_current=free - OFFSET, current_offset=OFFSET)
    batch = SimpleNamespace(
        is_empty=lambda: decodes == 0,
        check_decode_mem=lambda: decodes <= free,
        new_tokens_required_next_decode=lambda: decodes,
    )
    chunked = None
    if rest is not None:
        chunked = SimpleNamespace(full_untruncated_fill_ids=[0] * 200, extend_end=200 - rest)
    fit = fixes.decodes_fit(cast("Any", batch), cast("Any", budget), cast("Any", chunked))
    assert fit is expected


class Node:
    """As upstream's `SessionReqNode`."""

    def __init__(self, rid: str, parent: Node | None = None) -> None:
        self.req = SimpleNamespace(rid=rid)
        self.children: list[Node] = []
        self.aborted = False
        if parent is not None:
            parent.children.append(self)

    def abort(self) -> None:
        self.aborted = True


def test_a_long_chain_of_turns_is_forgotten() -> None:
    first = last = Node("0")
    known = {"0": first}
    for i in range(1, 5000):
        last = known[str(i)] = Node(str(i), last)
    fixes.forget(first.children, known)
    assert known == {"0": first}
    assert last.aborted
    assert not first.aborted


@given(data=st.data(), real=st.integers(0, 5), padding=st.integers(0, 4))
def test_padding_is_not_a_sibling(data: st.DataObject, real: int, padding: int) -> None:
    """Children of the root, real ones first, as upstream lays its n-gram trees out."""
    children = data.draw(st.lists(st.integers(1, 9), min_size=real, max_size=real, unique=True))
    tokens = [7, *children, *[0] * padding]
    last = len(tokens) - 1
    sibling = [-1, *(node + 1 if node < last else -1 for node in range(1, len(tokens)))]
    links = torch.tensor([sibling])
    fixes.unlink_padding(torch.tensor(tokens), links)
    linked = [1] if last else []
    while linked and links[0, linked[-1]] != -1:
        linked.append(int(links[0, linked[-1]]))
    assert [tokens[node] for node in linked] == (children or [0] * min(padding, 1))
