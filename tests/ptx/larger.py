"""Larger shapes than Triton's interpreter could run, for the compiled kernels (README.md).

Windows are compared with the torch operators, histories with the kernels of numba, which the
project's own tests hold to the oracle.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import test_kernels as small
import torch

from sglang_lz.fields.histories import HistoryParams
from sglang_lz.fields.lz import LZParams
from sglang_lz.penalty import kernels, penalizer
from sglang_lz.penalty.draft_tree import DraftTrees
from sglang_lz.penalty.history import HistoryRoom
from sglang_lz.penalty.history_penalizer import RowHistory
from sglang_lz.penalty.penalizer import Penalizer
from sglang_lz.penalty.reference import steps as reference
from sglang_lz.penalty.window import RowWindow, StepInputs
from trees import Tree

SPECIAL = (float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e-40, -1e-40, -3e38, 3e38)
CLOSE = {"atol": small.TOLERANCE, "rtol": small.TOLERANCE, "equal_nan": True}


@pytest.fixture
def cuda_kernels() -> ModuleType:
    from sglang_lz.penalty.kernels import cuda

    return cuda


def text(rng: random.Random, length: int, vocab: int) -> list[int]:
    """Random tokens with long repeats and tight loops, so that tokens stand in many columns."""
    out: list[int] = []
    few = rng.choice([3, 40, vocab - 1])
    while len(out) < length:
        kind = rng.random()
        if kind < 0.4 or len(out) < 8:
            out += [rng.randrange(few + 1) for _ in range(rng.randint(1, 60))]
        elif kind < 0.7:
            start = rng.randrange(len(out))
            out += out[start : start + rng.randint(1, 200)]
        else:
            out += out[-rng.randint(1, 9) :] * rng.randint(2, 30)
    return out[:length]


@pytest.mark.parametrize("capacity", [32, 200, 512, 1024, 2048, 8192])
def test_larger_steps(cuda_kernels: ModuleType, capacity: int) -> None:
    rng = random.Random(capacity)
    torch.manual_seed(capacity)
    vocab = rng.choice([1000, 3001, 5000])
    rows = rng.randint(4, 16) if capacity < 8192 else 3
    histories = [text(rng, rng.randint(1, 2 * capacity), vocab) for _ in range(rows)]
    params = []
    for history in histories:
        window = rng.choice([capacity, rng.randint(1, capacity), min(512, capacity)])
        first = rng.choice([0, 0, rng.randint(0, len(history))])
        buffer = rng.choice([window, min(32, window)])
        penalty, is_rate, onset = rng.choice([0, 0.15, 2, 2]), rng.randrange(2), rng.randrange(4)
        params.append((penalty, window, buffer, first, is_rate, onset))
    state = small.window_state(capacity, histories, params)
    device_state = small.on_device(state)
    widest = max((int(window) for penalty, window, *_ in params if penalty), default=1)
    for _ in range(3):
        order = rng.sample(range(1, rows + 1), rows)
        prefilled = rng.choice([0, 0, rng.randint(0, rows)])
        offset = 0 if prefilled else rng.randint(0, 3)
        newest = torch.tensor([rng.choice(rng.choice(histories)) for _ in range(rows + 4)])
        for i, row in enumerate(order[prefilled:], prefilled):
            own = histories[row - 1]
            if rng.random() < 0.7:  # go on with a loop
                newest[i + offset] = own[-rng.randint(1, min(9, len(own)))]
            own.append(int(newest[i + offset]))
        logits = small.random_logits(rng, rows, vocab)
        for value in rng.choice([(), SPECIAL]):
            logits[rng.randrange(rows), torch.randint(0, vocab, (vocab // 20,))] = value
        device_logits = small.clone(logits)
        counts = torch.tensor([len(histories[row - 1]) for row in order])
        inputs = StepInputs(torch.tensor(order), counts, newest, prefilled, offset)
        reference.step(state, logits, inputs, width=widest)
        cuda_kernels.step(device_state, device_logits, inputs, width=widest)
        torch.testing.assert_close(device_logits, logits, **CLOSE)
        lengths = {row: len(histories[row - 1]) for row in order}
        small.assert_same(state, device_state, lengths)


@pytest.mark.parametrize("is_chain", [False, True])
@pytest.mark.parametrize("nodes", [1, 2, 8, 33, 64])
def test_larger_trees(
    cuda_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, nodes: int, is_chain: bool
) -> None:
    rng = random.Random(f"{nodes} {is_chain}")
    torch.manual_seed(nodes)
    capacity, vocab = rng.choice([16, 64, 600, 1024]), rng.choice([1000, 2001])
    rows = 4 if nodes < 20 else 2
    histories = [text(rng, rng.randint(1, 2 * capacity), 5) for _ in range(rows)]
    params = []
    for _ in histories:
        window = rng.randint(1, capacity)
        buffer, onset = rng.randint(1, window), rng.randrange(3)
        params.append((rng.choice([0.15, 2.0]), window, buffer, 0, rng.randrange(2), onset))
    state = small.window_state(capacity, histories, params)
    device_state = small.on_device(state)
    make = Tree.random

    def shaped(rng: random.Random, root: int, _: int) -> Tree:
        tree = make(rng, root, nodes)
        if is_chain:
            tree.parent[:] = [0, *range(nodes - 1)]
        return tree

    monkeypatch.setattr(Tree, "random", staticmethod(shaped))
    monkeypatch.setattr(rng, "randint", lambda low, high: nodes if high == 7 else low)
    for _ in range(2):
        order = rng.sample(range(1, rows + 1), rows)
        small.verify(cuda_kernels, rng, state, device_state, order, histories, vocab)
        lengths = {row: len(histories[row - 1]) for row in order}
        small.assert_same(state, device_state, lengths)


def history_params(rng: random.Random) -> HistoryParams:
    given: dict[str, Any] = {}
    if rng.random() < 0.6:
        given |= {
            "dry_multiplier": rng.choice([0.5, 2.0]),
            "dry_base": rng.choice([1.0, 1.75, 3.0]),
            "dry_allowed_length": rng.choice([1, 2, 5]),
            "dry_penalty_last_n": rng.choice([-1, 5, 60, 1500, 3500]),
            "dry_sequence_breakers": rng.choice([(), ("x",)]),
        }
    if rng.random() < 0.5:
        given |= {
            "no_repeat_ngram_size": rng.choice([1, 2, 4]),
            "no_repeat_ngram_window": rng.choice([-1, 9, 100, 1300, 3300]),
            "no_repeat_ngram_whitelist": rng.choice([(), (0, 3, 7)]),
        }
    if rng.random() < 0.5:
        given["penalty_last_n"] = rng.choice([-1, 3, 50, 1200])
    return HistoryParams(**given)


def breaker_tables(vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Tables of three breakers, two of them longer than a token."""
    mask, tails = np.zeros(vocab, dtype=np.int64), np.zeros((62, 21), dtype=np.int32)
    for bit, tokens in enumerate(([1, 17], [2, 3], [3])):
        mask[tokens] |= 1 << bit
    tails[0, :3] = 2, 0, 1
    tails[1, :2] = 1, 2
    return mask, tails


def row_history(rng: random.Random, tokens: Sequence[int], vocab: int) -> RowHistory:
    params = history_params(rng)
    stops = rng.choice([1, 5, min(1500, vocab)])
    return RowHistory(
        tokens=list(tokens),
        first_output=rng.randint(0, len(tokens)),
        longest=len(tokens) + 500,
        frequency=rng.choice([0.0, 0.4]),
        presence=rng.choice([0.0, -0.7]),
        repetition=rng.choice([1.3, 0.5]),
        min_new_tokens=rng.choice([0, 3, 5000]),
        stops={rng.randrange(vocab) for _ in range(stops)},
        params=params,
        tables=(lambda: breaker_tables(vocab)) if params.dry_sequence_breakers else None,
    )


@pytest.mark.parametrize("case", range(16))
def test_larger_histories(
    cuda_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, case: int
) -> None:
    """Many distinct tokens and periods, so several blocks, in the last cases wide ones too;
    prefill, decode and draft trees."""
    rng = random.Random(f"histories {case}")
    torch.manual_seed(case)
    vocab, capacity = rng.choice([1000, 5000]), rng.choice([32, 512, 1024])
    rows, most_nodes = rng.randint(2, 5), 7
    few = [rng.choice([4, 50, vocab]) for _ in range(rows)]
    lengths = [1, 5, 300, 1024, 1025, 2500] if case < 12 else [2200, 3100, 4200, 6500]
    texts = [[token % most for token in text(rng, rng.choice(lengths), vocab)] for most in few]
    windows = {}
    for i, own in enumerate(texts):
        window = rng.randint(1, capacity)
        onset = rng.choice([0, 2])
        cost = rng.choice(("marginal", "rate"))
        lz = LZParams(2.0, window, min(32, window), cost=cost, onset=onset)
        windows[i] = RowWindow(array("q", own), 0, len(own), lz=lz)
    histories = {i: row_history(rng, own, vocab) for i, own in enumerate(texts)}
    if rng.random() < 0.5:
        del histories[rng.randrange(rows)]
    request_rows, generations = torch.arange(1, rows + 1), torch.ones(rows + 1, dtype=torch.int64)
    ours = []
    for module, nodes in ((kernels.import_for(torch.device("cpu")), 0), (cuda_kernels, most_nodes)):
        monkeypatch.setattr(penalizer.kernels, "import_for", lambda device, found=module: found)
        room = HistoryRoom(vocab, words=2**20, nodes=nodes, lists=2, logits=rows * most_nodes)
        ours.append(Penalizer(generations, capacity, "cpu", room))

    def plan(one: Penalizer, *, starts: bool) -> Any:
        given = (windows, histories) if starts else ({}, {})
        prefilled = rows if starts else 0
        return one.plan(request_rows, rows, *given, prefilled=prefilled)

    for mode in ("prefill", "decode", "decode", "tree", "decode", "tree", "decode"):
        is_masked = bool(rng.randrange(2))
        place = request_rows
        if mode == "tree":
            assert_trees_agree(ours, [plan(one, starts=False) for one in ours], texts, rng, vocab)
            continue
        newest = torch.tensor([rng.choice([*own[-6:], rng.randrange(vocab)]) for own in texts])
        if mode == "decode":
            for own, token in zip(texts, newest.tolist(), strict=True):
                own.append(token)
        lengths = torch.tensor([len(own) for own in texts])
        logits = torch.randn(rows, vocab)
        found = []
        for one in ours:
            step, changed = plan(one, starts=mode == "prefill"), logits.clone()
            assert step is not None
            one.apply(
                step,
                changed,
                request_rows=place,
                seq_lens=lengths,
                input_ids=newest,
                is_masked=is_masked,
            )
            one.forbid(step, changed)
            found.append(changed)
        torch.testing.assert_close(found[1], found[0], atol=2e-4, rtol=2e-4)


def assert_trees_agree(
    ours: Sequence[Penalizer],
    plans: Sequence[Any],
    texts: Sequence[list[int]],
    rng: random.Random,
    vocab: int,
) -> None:
    """Verify a draft tree of each row by both, compare all nodes, and accept a path of each."""
    rows, nodes = len(texts), rng.choice([2, 4, 7])
    trees = [Tree.random(rng, rng.randrange(4), nodes) for _ in texts]
    first, sibling = zip(*(tree.links() for tree in trees), strict=True)
    paths = [[tree.path(node) for node in range(nodes)] for tree in trees]
    drafts = DraftTrees(
        torch.arange(1, rows + 1),
        torch.tensor([len(own) for own in texts]),
        torch.tensor([tree.tokens for tree in trees]),
        torch.tensor(first),
        torch.tensor(sibling),
        max(len(path) for tree in paths for path in tree),
    )
    chosen = [rng.choice(tree) for tree in paths]
    index = [
        [i * nodes + node for node in (path + [0] * nodes)[:nodes]] for i, path in enumerate(chosen)
    ]
    ends = (
        torch.tensor(index, dtype=torch.int32),
        torch.tensor([len(path) - 1 for path in chosen], dtype=torch.int32),
    )
    logits = torch.randn(rows * nodes, vocab)
    found = []
    for one, plan in zip(ours, plans, strict=True):
        changed = logits.clone()
        verified = one.verify(plan, changed, drafts)
        one.accept(verified, *ends)
        found.append(changed)
    torch.testing.assert_close(found[1], found[0], atol=2e-4, rtol=2e-4)
    for own, tree, path in zip(texts, trees, chosen, strict=True):
        own += [tree.tokens[node] for node in path]


@pytest.mark.parametrize("capacity", [100, 1024])
def test_larger_warming_up(cuda_kernels: ModuleType, capacity: int) -> None:
    kernels.warm_up(cuda_kernels, capacity, torch.device("cpu"), {1, 3, 40})
