"""The paths of a draft tree, from each node up to its root.

The history of a node is the committed tokens and then its own ancestors (docs/SPEC.md section 4),
so each node has a window of its own. Node 0 is the root, the newest
committed token; trees come as upstream's links, a node's first child and its next sibling.
"""

from __future__ import annotations

import torch
from torch import Tensor


def parents(first_child: Tensor, next_sibling: Tensor) -> Tensor:
    """The parent of each node; the root's, and that of a node outside the tree, is node 0.

    Args:
        first_child: int64 [trees, nodes], -1 for none.
        next_sibling: int64 [trees, nodes], -1 for none.

    Returns:
        int64 [trees, nodes].
    """
    nodes = first_child.shape[1]
    node = torch.arange(nodes, device=first_child.device).expand_as(first_child)
    # Follow the siblings back to the eldest, twice as far each time: no order of nodes is assumed.
    eldest = _inverse(next_sibling, default=node)
    for _ in range((nodes - 1).bit_length()):
        eldest = eldest.gather(1, eldest)
    return _inverse(first_child, default=torch.zeros_like(node)).gather(1, eldest)


def paths(
    tokens: Tensor, first_child: Tensor, next_sibling: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """The tokens on the way from each node up to its root, both included.

    Args:
        tokens: integer [trees, nodes].
        first_child: int64 [trees, nodes], -1 for none.
        next_sibling: int64 [trees, nodes], -1 for none.
        depth: the most nodes on a path.

    Returns:
        The tokens, the node's first, int32 [trees, nodes, depth], behind the root's only
        repeats of it; and how many nodes are on each path, int64 [trees, nodes].
    """
    parent = parents(first_child, next_sibling)
    nodes = [torch.arange(tokens.shape[1], device=tokens.device).expand_as(parent)]
    for _ in range(depth - 1):
        nodes.append(parent.gather(1, nodes[-1]))
    node = torch.stack(nodes, dim=2)
    on_path = tokens[:, None].expand(-1, tokens.shape[1], -1).gather(2, node)
    return on_path.to(torch.int32), 1 + (node != 0).sum(dim=2)


def unlink_padding(tokens: Tensor, next_sibling: Tensor) -> None:
    """Leave the padding of n-gram trees out of what may be accepted (upstream's hook).

    Upstream fills a tree that is short of drafts with children of its root whose token is 0. Its
    sampling adds up the probabilities of siblings that it refuses, so it would count token 0 once
    for each of them and take it far too often. A real draft of token 0 may be cut off with those
    behind it: it is then sampled instead of accepted.

    Args:
        tokens: integer [trees x nodes].
        next_sibling: int64 [trees, nodes], -1 for none; changed in place.
    """
    of_sibling = tokens.view_as(next_sibling).gather(1, next_sibling.clamp_min(0))
    next_sibling.masked_fill_(of_sibling == 0, -1)


def _inverse(link: Tensor, default: Tensor) -> Tensor:
    """`result[tree, link[tree, node]] = node` where there is a link, else `default`."""
    nodes = link.shape[1]
    node = torch.arange(nodes, device=link.device).expand_as(link)
    # What has no link is written to a column of its own.
    padded = torch.nn.functional.pad(default, (0, 1))
    return padded.scatter(1, link.masked_fill(link < 0, nodes), node)[:, :nodes]
