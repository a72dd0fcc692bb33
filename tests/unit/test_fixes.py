"""Small repairs of upstream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sglang_lz import fixes

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


def test_an_id_used_twice_is_forgotten_once() -> None:
    old = Node("a")
    new = Node("a", old)
    known = {"a": new}
    fixes.forget([old], known)
    assert not known
    assert old.aborted
    assert new.aborted
