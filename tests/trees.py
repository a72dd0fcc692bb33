"""Draft trees of speculative decoding, drawn at random."""

from __future__ import annotations

import random
from dataclasses import dataclass

TOKENS = range(5)  # few, so that drafts repeat what came before


@dataclass
class Tree:
    """A draft tree: token and parent of each node; node 0 is the root."""

    tokens: list[int]
    parent: list[int]

    @classmethod
    def random(cls, rng: random.Random, root: int, nodes: int) -> Tree:
        """Any shape, any of TOKENS on the nodes: siblings may have the same one.

        Nodes stand in any order, so that a parent may come after its children.
        """
        tokens = [root, *(rng.choice(TOKENS) for _ in range(nodes - 1))]
        names = [0, *rng.sample(range(1, nodes), nodes - 1)]
        parents = [0] * nodes
        for node in range(1, nodes):
            parents[names[node]] = names[rng.randrange(node)]
        return cls(tokens, parents)

    def path(self, node: int) -> list[int]:
        """The nodes on the way to this one, the root first."""
        return [0] if node == 0 else [*self.path(self.parent[node]), node]

    def links(self) -> tuple[list[int], list[int]]:
        """First child and next sibling of each node, -1 for none, as upstream links them.

        Siblings stand in the order of their tokens, and so in any order of nodes.
        """
        first, sibling = [-1] * len(self.tokens), [-1] * len(self.tokens)
        for node in sorted(range(1, len(self.tokens)), key=self.tokens.__getitem__, reverse=True):
            sibling[node] = first[self.parent[node]]
            first[self.parent[node]] = node
        return first, sibling
