"""Draft trees, their verification and attention in `sgl_kernel` against plain definitions."""

import math
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

UNSET = -7


@dataclass
class Tree:
    """Parents of the nodes (None = none), the root first."""

    parents: list[int | None]

    def path(self, node: int) -> list[int]:
        """The node and what is above it, upwards."""
        parent = self.parents[node]
        return [node] if parent is None else [node, *self.path(parent)]

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def links(self) -> tuple[list[int], list[int]]:
        """First child of every node, and next child of the same parent."""
        first, following = [-1] * len(self.parents), [-1] * len(self.parents)
        for node in range(len(self.parents)):
            children = self.children(node)
            if children:
                first[node] = children[0]
            for child, sibling in pairwise(children):
                following[child] = sibling
        return first, following


@st.composite
def forests(draw: st.DrawFn, max_nodes: int = 9, batch: int | None = None) -> list[Tree]:
    """Any trees of as many nodes each, whose nodes come after their parents."""
    count = draw(st.integers(1, max_nodes))
    return [
        Tree([None, *(draw(st.integers(0, node - 1)) for node in range(1, count))])
        for _ in range(batch or draw(st.integers(1, 3)))
    ]


def outputs(batch: int, nodes: int) -> dict[str, torch.Tensor]:
    """The outputs of both kernels that make trees, unset."""
    return {
        "positions": torch.full((batch * nodes,), UNSET),
        **{
            name: torch.full((batch, nodes), UNSET)
            for name in ("retrive_index", "retrive_next_token", "retrive_next_sibling")
        },
    }


def assert_tree(written: dict[str, torch.Tensor], request: int, tree: Tree, root: int) -> None:
    nodes = len(tree.parents)
    first, following = tree.links()
    assert written["retrive_index"][request].tolist() == [request * nodes + i for i in range(nodes)]
    assert written["retrive_next_token"][request].tolist() == first
    assert written["retrive_next_sibling"][request].tolist() == following
    depths = [len(tree.path(node)) - 1 for node in range(nodes)]
    positions = written["positions"].view(-1, nodes)[request].tolist()
    assert positions == [root + depth for depth in depths]


@dataclass
class Proposals:
    """What a draft proposed, and which of it was selected, as SGLang numbers it."""

    topk: int
    steps: int
    parent_list: list[int]
    selected: list[int]

    def node_of(self, proposal: int) -> int | None:
        return self.selected.index(proposal) + 1 if proposal in self.selected else None

    def tree(self) -> Tree:
        """A proposal of the first step follows the root, any other the one its group stands for."""
        parents: list[int | None] = [None]
        for proposal in self.selected:
            group = proposal // self.topk
            parents.append(0 if group == 0 else self.node_of(self.parent_list[group]))
        return Tree(parents)


@st.composite
def proposals(draw: st.DrawFn, topk: int, steps: int, count: int) -> Proposals:
    """`count` of all proposals; the parents of some may not be among them."""
    parent_list = list(range(-1, topk))
    for step in range(1, steps):
        first = topk + topk * topk * (step - 1)
        parent_list += draw(st.permutations(range(first, first + topk * topk)))[:topk]
    total = topk + topk * topk * (steps - 1)
    selected = sorted(draw(st.permutations(range(total)))[:count])
    kept = parent_list[:-topk] if steps > 1 else []  # nothing follows the last step's
    return Proposals(topk, steps, kept, selected)


@st.composite
def drafts(draw: st.DrawFn) -> list[Proposals]:
    topk, steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    count = draw(st.integers(1, topk + topk * topk * (steps - 1)))
    return [draw(proposals(topk, steps, count)) for _ in range(draw(st.integers(1, 3)))]


@given(drafts=drafts())
def test_build_tree(kernels: ModuleType, drafts: list[Proposals]) -> None:
    batch, nodes = len(drafts), len(drafts[0].selected) + 1
    roots = [10 * (request + 1) for request in range(batch)]
    mask = torch.ones(batch * nodes * nodes, dtype=torch.bool)
    written = outputs(batch, nodes)

    kernels.build_tree_kernel_efficient_cpu(
        torch.tensor([draft.parent_list for draft in drafts], dtype=torch.int64),
        torch.tensor([draft.selected for draft in drafts]),
        torch.tensor(roots),
        mask,
        *written.values(),
        drafts[0].topk,
        drafts[0].steps,
        nodes,
        1,
    )

    for request, draft in enumerate(drafts):
        tree = draft.tree()
        attached = [0 in tree.path(node) for node in range(nodes)]
        rows = mask.view(batch, nodes, nodes)[request].tolist()
        assert [row[0] for row in rows] == [True] * nodes
        for node in range(nodes):
            seen = [j for j in range(1, nodes) if rows[node][j]]
            assert seen == sorted(set(tree.path(node)) - {0})
        if all(attached):
            assert_tree(written, request, tree, roots[request])
        else:  # such a node is in no list of children, whatever else is said of it
            first, following = tree.links()
            assert written["retrive_next_token"][request].tolist() == first
            assert written["retrive_next_sibling"][request].tolist() == following


def tree_tensors(forest: list[Tree]) -> list[torch.Tensor]:
    """Numbers and links of trees, as the kernels that verify take them."""
    batch, nodes = len(forest), len(forest[0].parents)
    links = [tree.links() for tree in forest]
    numbers = torch.arange(batch * nodes).view(batch, nodes)
    return [numbers, *(torch.tensor(side) for side in zip(*links, strict=True))]


def verdict(batch: int, nodes: int, width: int) -> dict[str, torch.Tensor]:
    """The outputs of every kernel that verifies, preset as SGLang presets them."""
    return {
        "predicts": torch.full((batch * nodes,), UNSET, dtype=torch.int32),
        "accept_index": torch.full((batch, width), -1, dtype=torch.int32),
        "accept_token_num": torch.full((batch,), UNSET, dtype=torch.int32),
    }


TRIALS = 10_000
SIGMAS = 5.0
"""Bound on a frequency's distance from its probability, in standard deviations: a right sampler
fails one of the hundred or so comparisons in 20,000 draws of the seed; the seed is fixed."""
VOCAB = 5
SHAPES = {
    "chain": Tree([None, 0, 1, 2]),
    "root alone": Tree([None]),
    "tree": Tree([None, 0, 0, 1, 1, 2, 2, 2]),
    "all tokens": Tree([None, 0, 0, 0, 0, 0, 1]),
}


def assert_frequencies(tokens: torch.Tensor, probs: torch.Tensor) -> None:
    """The tokens (n,) are distributed as probs (V,), within SIGMAS."""
    count = len(tokens)
    frequencies = tokens.bincount(minlength=len(probs)) / count
    assert (frequencies[probs == 0] == 0).all()
    error = (frequencies - probs).abs()
    assert (error <= SIGMAS * (probs * (1 - probs) / count).sqrt() + 1e-9).all(), (
        frequencies,
        probs,
    )


def sampled_text(written: dict[str, torch.Tensor], length: int) -> torch.Tensor:
    """The tokens that each trial emits, UNSET behind the last: (trials, length)."""
    index = written["accept_index"].long()
    text = written["predicts"].long()[index.clamp(min=0)]
    return torch.where(index < 0, UNSET, text)[:, :length]


def sample(
    kernels: ModuleType,
    name: str,
    tree: Tree,
    width: int,
    *,
    without_last: bool = False,
    **given: Any,
) -> torch.Tensor:
    """Run a sampling kernel once for each trial and return what it emitted: (trials, width)."""
    trials, nodes = given["candidates"].shape
    written = verdict(trials, nodes, width)
    generator = torch.Generator().manual_seed(1)
    links = [side.expand(trials, -1) for side in tree_tensors([tree])[1:]]
    getattr(kernels, name)(
        **written,
        retrive_index=torch.arange(trials * nodes).view(trials, nodes),
        retrive_next_token=links[0],
        retrive_next_sibling=links[1],
        uniform_samples=torch.rand(trials, nodes - without_last, generator=generator),
        uniform_samples_for_final_sampling=torch.rand(trials, generator=generator),
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
        **given,
    )
    text = sampled_text(written, width)
    assert torch.equal((text != UNSET).sum(1) - 1, written["accept_token_num"].long())
    return text


def random_probs(*shape: int, zeros: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(*shape, generator=generator) ** 2 + 0.02
    if zeros:
        weights[..., 0] = 0.0
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_tree_sampling_follows_the_target(kernels: ModuleType, shape: str) -> None:
    """Every token that is emitted has the target's distribution given those before it."""
    tree = SHAPES[shape]
    nodes = len(tree.parents)
    width = max(len(tree.path(node)) for node in range(nodes))
    probs = random_probs(nodes, VOCAB, zeros=True)
    tokens = [0] * nodes  # of siblings all differ
    for node in range(nodes):
        for place, child in enumerate(tree.children(node)):
            tokens[child] = (node + place + 1) % VOCAB

    text = sample(
        kernels,
        "tree_speculative_sampling_target_only",
        tree,
        width,
        candidates=torch.tensor(tokens).expand(TRIALS, -1),
        target_probs=probs.expand(TRIALS, -1, -1),
        draft_probs=torch.zeros(1),
    )

    for node in range(nodes):
        way = [tokens[above] for above in reversed(tree.path(node))][1:]
        here = (text[:, : len(way)] == torch.tensor(way)).all(1)
        following = text[here, len(way)]
        if probs[tree.path(node)[1:], list(reversed(way))].prod() == 0:
            assert len(following) == 0
            continue
        assert (following != UNSET).all(), "an emitted draft token must be an accepted one"
        assert_frequencies(following, probs[node])


def test_tree_sampling_takes_a_certain_token_at_any_coin(kernels: ModuleType) -> None:
    """Coins of 0 and next to 1, probabilities that sum to a little less than 1."""
    tree = Tree([None, 0])
    short = torch.tensor([0.0, 1.0 - 1e-6, 0.0])
    for coin in (0.0, 1.0 - 2**-24):
        written = verdict(1, 2, 2)
        kernels.tree_speculative_sampling_target_only(
            *written.values(),
            torch.tensor([[0, 1]]),
            *tree_tensors([tree]),
            torch.full((1, 2), coin),
            torch.full((1,), coin),
            short.expand(1, 2, 3),
            torch.zeros(1),
        )
        assert written["predicts"].tolist() == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("without_last", [False, True])
def test_chain_rejection_sampling_follows_the_target(
    kernels: ModuleType, nodes: int, without_last: bool
) -> None:
    """As above, with tokens drawn from the draft's own distributions."""
    tree = Tree([None, *range(nodes - 1)])
    target = random_probs(nodes, VOCAB, zeros=True)
    draft = random_probs(nodes, VOCAB).flip(1)[:-1]
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.multinomial(q, TRIALS, True, generator=generator) for q in draft]

    text = sample(
        kernels,
        "chain_speculative_sampling_triton",
        tree,
        nodes,
        without_last=without_last,
        candidates=torch.stack([torch.zeros(TRIALS, dtype=torch.int64), *drawn], 1),
        target_probs=target.expand(TRIALS, -1, -1),
        draft_probs=draft.expand(TRIALS, -1, -1),
    )

    for place in range(nodes):
        reached = text[:, place] != UNSET
        assert_frequencies(text[reached, place], target[place])


@given(data=st.data())
def test_renormalised_top_k_and_top_p(kernels: ModuleType, data: st.DataObject) -> None:
    weights = data.draw(
        st.lists(st.lists(st.integers(0, 9), min_size=6, max_size=6), min_size=1, max_size=3)
    )
    probs = torch.tensor(weights, dtype=torch.float32)
    probs[:, 0] += 1
    probs /= probs.sum(1, keepdim=True)
    ks = [data.draw(st.sampled_from([1, 2, 5, 6, 1 << 30])) for _ in weights]
    ps = [data.draw(st.sampled_from([1e-6, 0.3183, 0.5772, 1.0])) for _ in weights]

    got_k = kernels.top_k_renorm_prob(probs, torch.tensor(ks, dtype=torch.int32))
    got_p = kernels.top_p_renorm_prob(probs, torch.tensor(ps))

    for row, (k, p) in enumerate(zip(ks, ps, strict=True)):
        ranked = sorted(range(6), key=lambda token: (-probs[row, token].item(), token))
        before = [sum(probs[row, token].item() for token in ranked[:i]) for i in range(6)]
        for kept, got in (
            (ranked[:k], got_k),
            ([token for i, token in enumerate(ranked) if before[i] <= p + 1e-6], got_p),
        ):
            wanted = torch.zeros(6)
            wanted[kept] = probs[row, kept] / probs[row, kept].sum()
            torch.testing.assert_close(got[row], wanted, atol=1e-5, rtol=0)


HEADS, GROUPS, WIDTH, VALUE_WIDTH, SLOTS, COLUMNS = 4, 2, 8, 6, 40, 12
SCALE = 0.3


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Softmax attention of one token to all it sees: (H, E), (M, G, E), (M, G, F) to (H, F)."""
    rows = []
    for head in range(HEADS):
        group = head * GROUPS // HEADS
        scores = [float(query[head] @ key[group]) * SCALE for key in keys]
        weights = [math.exp(score - max(scores)) for score in scores]
        row = sum(w * v[group] for w, v in zip(weights, values, strict=True)) / sum(weights)
        rows.append(row)
    return torch.stack(rows)


@dataclass
class Pool:
    """A KV cache and three requests in it, each with slots of its own."""

    keys: torch.Tensor
    values: torch.Tensor
    req_to_token: torch.Tensor
    rows = torch.tensor([2, 0, 1])

    @classmethod
    def random(cls, dtype: torch.dtype = torch.float32) -> "Pool":
        generator = torch.Generator().manual_seed(7)
        return cls(
            torch.randn(SLOTS, GROUPS, WIDTH, generator=generator).to(dtype),
            torch.randn(SLOTS, GROUPS, VALUE_WIDTH, generator=generator).to(dtype),
            torch.randperm(SLOTS, generator=generator)[: 3 * COLUMNS].view(3, COLUMNS).int(),
        )

    def slot(self, request: int, place: int) -> int:
        return int(self.req_to_token[self.rows[request], place])


def extend(kernels: ModuleType, pool: Pool, lengths: list[tuple[int, int]], **options: Any) -> Any:
    """Run the kernel on (tokens before, new tokens) of three requests; its query and output."""
    new = [count for _, count in lengths]
    query = torch.randn(sum(new), HEADS, WIDTH, generator=torch.Generator().manual_seed(8))
    output = torch.full((sum(new), HEADS, VALUE_WIDTH), math.nan)
    given = {
        "key": None,
        "value": None,
        "sliding_window": 0,
        "tree_mask": None,
        "logit_cap": 0.0,
        "is_cross_attn": False,
        "sinks": None,
        "is_causal": True,
        **options,
    }
    kernels.extend_attention_cpu(
        query=query,
        output=output,
        k_buffer=pool.keys,
        v_buffer=pool.values,
        k_scale=1.0,
        v_scale=1.0,
        req_to_token=pool.req_to_token,
        req_pool_indices=pool.rows,
        seq_lens=torch.tensor([before + count for before, count in lengths]),
        extend_seq_lens=torch.tensor(new, dtype=torch.int32),
        extend_start_loc=torch.tensor([sum(new[:i]) for i in range(3)], dtype=torch.int32),
        max_len_extend=max(new),
        sm_scale=SCALE,
        encoder_lens=None,
        **given,
    )
    return query, output


@given(forest=forests(max_nodes=5, batch=3), window=st.integers(0, 5), data=st.data())
def test_attention_to_a_tree(
    kernels: ModuleType, forest: list[Tree], window: int, data: st.DataObject
) -> None:
    """A node sees the tokens before the tree and its ancestors, of them the newest `window`. What
    pads a batch has no tree, and is taken for a chain."""
    nodes = len(forest[0].parents)
    trees = data.draw(st.integers(1, len(forest)))
    prefixes = [data.draw(st.integers(0, COLUMNS - nodes)) for _ in forest]
    mask = torch.zeros(3, nodes, nodes, dtype=torch.bool)
    for request, tree in enumerate(forest):
        for node in range(nodes):
            mask[request, node, tree.path(node)] = True
    pool = Pool.random()

    query, output = extend(
        kernels,
        pool,
        [(prefix, nodes) for prefix in prefixes],
        tree_mask=mask[:trees].flatten(),
        sliding_window=window,
    )

    for request, (tree, prefix) in enumerate(zip(forest, prefixes, strict=True)):
        for node in range(nodes):
            path = reversed(tree.path(node)) if request < trees else range(node + 1)
            way = [*range(prefix), *(prefix + above for above in path)]
            slots = [pool.slot(request, place) for place in way[-window:]]  # [-0:] is all
            wanted = attention(query[request * nodes + node], pool.keys[slots], pool.values[slots])
            torch.testing.assert_close(output[request * nodes + node], wanted, atol=1e-5, rtol=0)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=3, max_size=3),
    window=st.integers(0, 5),
    own=st.booleans(),
)
def test_attention_of_a_prefill(
    kernels: ModuleType, lengths: list[tuple[int, int]], window: int, own: bool
) -> None:
    """Each new token sees what is before it, from the cache or from the keys that come along."""
    pool = Pool.random()
    tokens = sum(count for _, count in lengths)
    generator = torch.Generator().manual_seed(9)
    key = torch.randn(tokens, GROUPS, WIDTH, generator=generator)
    value = torch.randn(tokens, GROUPS, VALUE_WIDTH, generator=generator)
    came = {"key": key.flatten(1), "value": value.flatten(1)} if own else {}

    query, output = extend(kernels, pool, lengths, sliding_window=window, **came)

    start = 0
    for request, (before, count) in enumerate(lengths):
        slots = [pool.slot(request, place) for place in range(before + count)]
        keys, values = pool.keys[slots], pool.values[slots]
        if own:
            keys[before:], values[before:] = key[start:][:count], value[start:][:count]
        for i in range(count):
            first = max(0, before + i + 1 - window) if window else 0
            seen = slice(first, before + i + 1)
            wanted = attention(query[start + i], keys[seen], values[seen])
            torch.testing.assert_close(output[start + i], wanted, atol=1e-5, rtol=0)
        start += count
