"""The windows of every node of a draft tree: what speculative decoding verifies against.

A node of a draft tree is judged with the committed tokens and then its own ancestors
(docs/SPEC.md section 4), so each node has a window of its own. Node 0 is the root, the newest
committed token; trees come as upstream's links, a node's first child and its next sibling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_lz.window import WindowView


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


def node_windows(root: WindowView, tokens: Tensor, parent: Tensor, depth: int) -> WindowView:
    """The window of each node: its tree's root window, advanced along the path to the node.

    Args:
        root: windows [trees, width] whose newest tokens are the roots.
        tokens: integer [trees, nodes]; those of the roots are not read.
        parent: int64 [trees, nodes], from `parents`.
        depth: at least the depth of the deepest node.

    Returns:
        A view whose leading dimensions are [trees, nodes].
    """
    trees, nodes = tokens.shape
    tree = torch.arange(trees, device=tokens.device)[:, None]
    windows = root[tree.expand(-1, nodes)]
    # All nodes at once, and right level by level: after n rounds those down to depth n are.
    for _ in range(depth):
        before = windows[tree, parent]
        windows = before.advance(tokens)
        windows.tokens[:, 0] = root.tokens
        windows.match[:, 0] = root.match
        windows.length[:, 0] = root.length
    return windows


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
