"""Requests of a session that another one replaces."""

from __future__ import annotations

from types import SimpleNamespace

from sglang_lz import sessions


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
    sessions.forget(first.children, known)
    assert known == {"0": first}
    assert last.aborted
    assert not first.aborted


def test_an_id_used_twice_is_forgotten_once() -> None:
    old = Node("a")
    new = Node("a", old)
    known = {"a": new}
    sessions.forget([old], known)
    assert not known
    assert old.aborted
    assert new.aborted
