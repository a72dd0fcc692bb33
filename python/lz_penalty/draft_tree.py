"""The paths of a draft tree, from each node up to the root.

A node sees the committed tokens, its ancestors and itself (docs/SPEC.md section 4), so each node
has its own window. Node 0 is the root, which is the newest committed token.
Upstream represents a tree by two links per node: its first child and its next sibling.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class DraftTrees(NamedTuple):
    """The draft trees of a batch.

    Attributes:
        request_rows: the request row of each tree, integer [batch].
        root: the position of each root, integer [batch].
        tokens: the nodes' tokens, node 0 being the root, integer [batch, nodes].
        first_child: int64 [batch, nodes], -1 for none.
        next_sibling: int64 [batch, nodes], -1 for none.
        depth: the most nodes on a path, root included.
    """

    request_rows: Tensor
    root: Tensor
    tokens: Tensor
    first_child: Tensor
    next_sibling: Tensor
    depth: int


class AcceptedPaths(NamedTuple):
    """The accepted path of each draft tree of a batch.

    Attributes:
        request_rows: the request row of each tree, integer [batch].
        root: the position of each root, integer [batch].
        paths: the tokens from each node up to its root, as `reference.steps.verify` returns them.
        accept_index: accepted nodes of each tree, root first, as rows of the logits, integer
            [batch, accepted].
        num_correct_drafts: how many nodes besides the root are accepted, integer [batch].
    """

    request_rows: Tensor
    root: Tensor
    paths: Tensor
    accept_index: Tensor
    num_correct_drafts: Tensor


def parents(first_child: Tensor, next_sibling: Tensor) -> Tensor:
    """The parent of each node. It is node 0 for the root and for nodes outside the tree.

    Args:
        first_child: int64 [trees, nodes], -1 for none.
        next_sibling: int64 [trees, nodes], -1 for none.

    Returns:
        int64 [trees, nodes].
    """
    nodes = first_child.shape[1]
    node = torch.arange(nodes, device=first_child.device).expand_as(first_child)
    # Follow sibling links to the first child, doubling the stride; the nodes may be in any order.
    eldest = _inverse(next_sibling, default=node)
    for _ in range((nodes - 1).bit_length()):
        eldest = eldest.gather(1, eldest)
    return _inverse(first_child, default=torch.zeros_like(node)).gather(1, eldest)


def paths(
    tokens: Tensor, first_child: Tensor, next_sibling: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """The tokens from each node up to its root, both included.

    Args:
        tokens: integer [trees, nodes].
        first_child: int64 [trees, nodes], -1 for none.
        next_sibling: int64 [trees, nodes], -1 for none.
        depth: the largest number of nodes on a path.

    Returns:
        The tokens, int32 [trees, nodes, depth], starting with the node's own and padded with the
        root's; and the number of nodes on each path, int64 [trees, nodes].
    """
    parent = parents(first_child, next_sibling)
    nodes = [torch.arange(tokens.shape[1], device=tokens.device).expand_as(parent)]
    for _ in range(depth - 1):
        nodes.append(parent.gather(1, nodes[-1]))
    node = torch.stack(nodes, dim=2)
    on_path = tokens[:, None].expand(-1, tokens.shape[1], -1).gather(2, node)
    return on_path.to(torch.int32), 1 + (node != 0).sum(dim=2)


def _inverse(link: Tensor, default: Tensor) -> Tensor:
    """`result[tree, link[tree, node]] = node` where there is a link, else `default`."""
    nodes = link.shape[1]
    node = torch.arange(nodes, device=link.device).expand_as(link)
    # Nodes without a link write to an extra column.
    padded = torch.nn.functional.pad(default, (0, 1))
    return padded.scatter(1, link.masked_fill(link < 0, nodes), node)[:, :nodes]
