"""Removal of a session's requests that another request replaces.

Upstream removes them recursively, which overflows the stack for a long chain of turns, and it
modifies a session's requests while iterating over them. Both raise on the scheduler's thread.
"""

from __future__ import annotations

from typing import Any


def forget(nodes: list[Any], known: dict[str, Any]) -> None:
    """Abort the requests of nodes and of all their descendants, and remove them from a session.

    Args:
        nodes: upstream's `SessionReqNode`s.
        known: the session's nodes, by request id; if a client reused an id, the newer node.
    """
    left = list(nodes)
    while left:
        node = left.pop()
        left += node.children
        node.children = []
        node.abort()
        rid = node.req.rid
        if known.get(rid) is node:
            del known[rid]
