"""The kernels, Triton's and numba's, against the torch operators.

Triton's run on its interpreter, or with LZ_TEST_DEVICE=cuda on the GPU at hand. The oracle
checks all three in test_penalizer.py.
"""

from __future__ import annotations

import functools
import json
import random
import re
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TypeVar

import numba
import numpy as np
import pytest
import torch
import triton

from device import DEVICE
from lz_penalty import draft_tree
from lz_penalty.draft_tree import AcceptedPaths, DraftTrees
from lz_penalty.fields.lz import LZParams
from lz_penalty.kernels import cpu as cpu_kernels
from lz_penalty.kernels import kernel as launching
from lz_penalty.kernels import warm_up
from lz_penalty.reference import steps as reference
from lz_penalty.window import (
    LEAST_ID,
    LONGEST_RUN,
    MEMORY,
    NUMBER_MARK,
    ONSET,
    PARAMS,
    RUNS,
    RowWindow,
    StepInputs,
    WindowState,
    bytes_of_row,
    tokens_to_seed,
)
from onset_examples import EXAMPLES, FADING, LAST_STEP, NUMBER_EXAMPLES, NUMBERS
from oracle import COSTS, delta_bits, has_memory, run_lengths
from trees import Tree

ON_GPU = DEVICE != "cpu"
KERNELS = ["cuda"] if ON_GPU else ["cuda", "cpu"]
TOLERANCE = 2e-5


@pytest.fixture
def kernels_of_name(cuda_kernels: ModuleType) -> dict[str, ModuleType]:
    return {"cuda": cuda_kernels, "cpu": cpu_kernels, "reference": reference}


def state_with(
    numbers: Iterable[int], rows: int, capacity: int, device: str = "cpu"
) -> WindowState:
    """An empty state whose set N is `numbers`."""
    is_number = np.zeros(max(numbers, default=-1) + 1, np.uint8)
    is_number[list(numbers)] = 1
    state = WindowState(rows, capacity, device, len(is_number))
    state.set_numbers(is_number)
    return state


def window_state(
    capacity: int,
    histories: Sequence[Sequence[int]],
    params: Sequence[tuple[float, ...]],
    numbers: Iterable[int] = (),
) -> WindowState:
    """Request row i + 1 holds histories[i]; params as the columns of `WindowState.params`."""
    state = state_with(numbers, len(histories) + 1, capacity)
    cpu_kernels.seed(state, seeds_of(range(1, len(histories) + 1), histories, params))
    return state


def seeds_of(
    rows: Sequence[int], histories: Sequence[Sequence[int]], params: Sequence[tuple[float, ...]]
) -> dict[int, RowWindow]:
    """The windows that give these rows these histories; params of zeros give a row up."""
    seeds = {}
    for row, history, given in zip(rows, histories, params, strict=True):
        penalty, window, buffer, first, is_rate, onset = given
        start = first if onset else max(first, len(history) - window)
        tokens = array("q", history[start:] if window else ())
        cost = "rate" if is_rate else "marginal"
        lz = LZParams(float(penalty), window, buffer, cost=cost, onset=onset)
        seeds[row] = RowWindow(tokens, len(tokens) // 2, len(history), first, lz)
    return seeds


def looping(
    rng: random.Random, length: int, token: Callable[[], int], numbers: Sequence[int] = ()
) -> list[int]:
    """A text of random tokens that now and then goes round, also up to numbers."""
    text: list[int] = []
    while len(text) < length:
        text += [token() for _ in range(rng.randint(1, 4))] * rng.choice([1, 1, 5, 20])
        if numbers and rng.random() < 0.5:
            line = [rng.choice([-1, token()]) for _ in range(rng.randint(5, 9))]
            for _ in range(rng.randint(3, 7)):
                text += [*line, rng.choice(numbers)]
    return text[:length]


def on_device(state: WindowState) -> WindowState:
    copy = WindowState(len(state.tokens), state.capacity, DEVICE, len(state.numbers))
    copy.set_numbers(state.host_numbers)
    for name in ("tokens", "run", "params", "cover"):
        getattr(copy, name).copy_(getattr(state, name))
    return copy


def assert_same(expected: WindowState, got: WindowState, lengths: dict[int, int]) -> None:
    """Every row's newest tokens, so many as `lengths` says, and the runs of its window."""
    torch.testing.assert_close(got.params.cpu(), expected.params)
    torch.testing.assert_close(got.cover.cpu(), expected.cover)
    torch.testing.assert_close(got.tokens.cpu(), expected.tokens)
    for row, length in lengths.items():
        seen = max(0, min(length - int(expected.params[row, 3]), int(expected.params[row, 1])))
        assert_same_runs(expected, got, row, seen)


def assert_same_runs(expected: WindowState, got: WindowState, row: int, seen: int) -> None:
    planes = slice(RUNS if expected.params[row, ONSET] else 1)
    of_row = row, planes, slice(1, seen)
    torch.testing.assert_close(got.run[of_row].cpu(), expected.run[of_row])


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), expected, atol=TOLERANCE, rtol=TOLERANCE)


def random_params(rng: random.Random, capacity: int, length: int) -> tuple[float, ...]:
    window = rng.randint(1, capacity)
    buffer, first = rng.randint(1, window), rng.randint(0, length)
    onset = rng.choice([0, 1, 2, 4])
    return rng.choice([0.0, 0.15, 2.0]), window, buffer, first, rng.randrange(2), onset


def random_logits(rng: random.Random, rows: int, vocab: int) -> torch.Tensor:
    """Of any layout."""
    layouts = {
        "contiguous": lambda: torch.randn(rows, vocab),
        "padded rows": lambda: torch.randn(rows, vocab + 3)[:, :vocab],
        "every second token": lambda: torch.randn(rows, 2 * vocab)[:, ::2],
        "transposed": lambda: torch.randn(vocab, rows).T,
    }
    return layouts[rng.choice(list(layouts))]()


@pytest.mark.parametrize("name", KERNELS)
def test_seeds_equal_the_torch_operators(kernels_of_name: dict[str, ModuleType], name: str) -> None:
    """Rows are seeded again with fewer and more tokens, with none, and cleared."""
    rng = random.Random(name)
    capacity, rows = 12, 6
    state = state_with(NUMBERS, rows, capacity)
    device_state = on_device(state)
    for _ in range(40):
        taken = rng.sample(range(rows), rng.randint(1, rows))
        token = functools.partial(rng.randrange, 3)
        histories = [looping(rng, rng.randint(1, 90), token, [*NUMBERS]) for _ in taken]
        params = [random_params(rng, capacity, len(history)) for history in histories]
        given_up = rng.random() < 0.3
        if given_up:
            params[-1] = (0.0,) * PARAMS
        if rng.random() < 0.3:  # nothing is seen of any
            params = [
                (*given[:3], len(history), *given[4:])
                for given, history in zip(params, histories, strict=True)
            ]
        seeds = seeds_of(taken, histories, params)
        reference.seed(state, seeds)
        kernels_of_name[name].seed(device_state, seeds)
        torch.testing.assert_close(device_state.params.cpu(), state.params)
        torch.testing.assert_close(device_state.cover.cpu(), state.cover)
        for row, history in zip(taken, histories, strict=True):
            window, first = (int(state.params[row, column]) for column in (1, 3))
            seen = min(window, max(0, len(history) - first))
            slot = (len(history) - 1 - torch.arange(seen)) % capacity
            assert device_state.tokens[row, slot].tolist() == state.tokens[row, slot].tolist()
            assert_same_runs(state, device_state, row, seen)


@pytest.mark.parametrize("name", [*KERNELS, "reference"])
@pytest.mark.parametrize("example", [*EXAMPLES, *NUMBER_EXAMPLES])
def test_worked_examples_of_the_onset(
    kernels_of_name: dict[str, ModuleType], name: str, example: str
) -> None:
    """The last tokens arrive as steps, and those before them in a seed."""
    history, lost = (EXAMPLES | NUMBER_EXAMPLES)[example]
    numbers = NUMBERS if example in NUMBER_EXAMPLES else ()
    logits = stepped(
        kernels_of_name[name], history, 3, LZParams(1.0, onset=2), 16, numbers=numbers
    )[1]
    expected = [-lost.get(token, 0.0) for token in range(16)]
    assert logits.tolist() == pytest.approx(expected, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KERNELS, "reference"])
@pytest.mark.parametrize("steps", [0, 4, 20])
def test_the_memory_fades(kernels_of_name: dict[str, ModuleType], name: str, steps: int) -> None:
    """Whatever of the steps is a seed, the ring of 64 tokens wrapping round."""
    kernels = kernels_of_name[name]
    for last in (LAST_STEP, LAST_STEP + 1):
        state, _ = stepped(kernels, FADING[:last], steps, LZParams(1.0, 64, 32, onset=2), 2048)
        assert int(state.cover[0, MEMORY]) == (last == LAST_STEP)


def stepped(
    kernels: ModuleType,
    history: Sequence[int],
    steps: int,
    lz: LZParams,
    vocab: int,
    *,
    numbers: Iterable[int] = (),
) -> tuple[WindowState, torch.Tensor]:
    """The state of a row after a history, so many of whose tokens are steps, and the logits of the
    last step, 0 before it."""
    device = "cpu" if kernels is reference else DEVICE
    state = state_with(numbers, 1, lz.window_size, device)
    seeded = len(history) - steps
    sampled = 0 if lz.onset else seeded
    kernels.seed(state, {0: RowWindow(array("q", history[:seeded]), sampled, seeded, lz=lz)})
    for length in range(seeded + bool(steps), len(history) + 1):
        logits = torch.zeros(1, vocab, device=device)
        kernels.step(
            state,
            logits,
            StepInputs(
                request_rows=torch.zeros(1, dtype=torch.int64, device=device),
                seq_lens=torch.full((1,), length, device=device),
                input_ids=torch.tensor(history[length - 1 : length], device=device),
                prefilled=int(not steps),
                offset=0,
            ),
            width=lz.window_size,
        )
    return state, logits[0].cpu()


def seeded(history: Sequence[int], window: int, onset: int) -> WindowState:
    """The state of a row whose whole history is output, its newest token in column 0."""
    state = WindowState(1, window, "cpu")
    lz = LZParams(1.0, window, 1, onset=onset)
    cpu_kernels.seed(state, {0: RowWindow(array("q", history), 0, 1, lz=lz)})
    return state


def test_the_first_window_with_tokens_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request would wait for it, for a second where nothing can be kept on disk."""
    fresh = numba.njit(cpu_kernels._seed.py_func)
    monkeypatch.setattr(cpu_kernels, "_seed", fresh)
    warm_up(cpu_kernels, 16, torch.device("cpu"), tree_sizes=())
    at_start = fresh.signatures[:]
    assert at_start
    for onset in (0, 2):
        seeded([1, 2, 1, 2], window=16, onset=onset)
    assert fresh.signatures == at_start


@pytest.mark.slow
def test_the_memory_of_a_seed_is_the_oracle_s() -> None:
    """Over histories longer than what is replayed, whose loops fade or do not."""
    found = []
    for case in range(12):
        rng = random.Random(case)
        window, onset = rng.choice([(3, 1), (8, 3), (50, 1), (50, 2)])
        history = list(range(1000, 1000 + rng.randint(0, 300)))
        for _ in range(3):
            history += list(range(rng.randint(1, window))) * rng.randint(5, 40)
            history += range(1000, 1000 + rng.randint(0, 400))
        found.append(has_memory([], history, False, window, onset))
        assert bool(seeded(history, window, onset).cover[0, MEMORY]) == found[-1], case
    assert set(found) == {True, False}


@pytest.mark.parametrize("loop", [1, 40, 511, 9000])
@pytest.mark.parametrize("after", [0, 1, 300, 575, 576])
def test_a_seed_needs_no_more_than_its_newest_tokens(loop: int, after: int) -> None:
    """This also holds if all of them are in a loop whose run saturates."""
    history = [t % loop for t in range(40_000)] + list(range(10_000, 10_000 + after))
    newest = history[-tokens_to_seed(512, 3) :]
    assert len(newest) < len(history)
    assert_same(*(seeded(tokens, 512, 3) for tokens in (history, newest)), {0: 512})


def test_the_run_lengths_of_a_history_equal_the_definition() -> None:
    rng = random.Random(0)
    for _ in range(200):
        history = looping(rng, rng.randint(1, 60), functools.partial(rng.randrange, 2))
        got = np.full(rng.randint(1, 70), -1, dtype=np.int16)
        cpu_kernels.run_lengths(np.array(history), got, LONGEST_RUN)
        assert got.tolist() == [0, *run_lengths(history, len(got)).values()]


def test_runs_saturate() -> None:
    got = np.zeros(5, dtype=np.int16)
    cpu_kernels.run_lengths(np.array([1, 2] * 20_000), got, LONGEST_RUN)
    assert got.tolist() == [0, 0, 32767, 0, 32767]


def test_the_longest_loop_is_matched_in_linear_time() -> None:
    """Compared token by token this would take 8192 * 8191 / 2 steps."""

    class Counted(list[int]):
        reads = 0

        def __getitem__(self, index):
            Counted.reads += 1
            return super().__getitem__(index)

    run = np.zeros(8192, dtype=np.int16)
    cpu_kernels.run_lengths.py_func(Counted([7] * 50_000), run, LONGEST_RUN)
    assert run[1] == 32767
    assert Counted.reads < 3 * 50_000


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", range(4))
def test_steps_and_draft_trees_equal_the_torch_operators(
    kernels_of_name: dict[str, ModuleType], name: str, seed: int
) -> None:
    """Random histories, parameters and layouts; several steps, each on the state of the last."""
    kernels = kernels_of_name[name]
    rng = random.Random(seed)
    torch.manual_seed(seed)
    capacity, vocab = rng.choice([1, 2, 7, 16, 33, 200]), rng.choice([1, 6, 40])
    token = lambda: rng.randint(-1, vocab)  # noqa: E731  both ends are outside the vocabulary
    numbers = range(vocab // 2, vocab)
    histories = [looping(rng, rng.randint(1, 2 * capacity + 40), token, numbers) for _ in range(4)]
    params = [random_params(rng, capacity, len(history)) for history in histories]
    state = window_state(capacity, histories, params, numbers)
    device_state = on_device(state)
    for _ in range(5):
        rows = rng.sample(range(1, 5), 4)
        if rng.random() < 0.5:
            decode(kernels, rng, state, device_state, rows, histories, token, vocab)
        else:
            verify(kernels, rng, state, device_state, rows, histories, vocab)
        assert_same(state, device_state, {row: len(histories[row - 1]) for row in rows})


def decode(kernels, rng, state, device_state, rows, histories, token, vocab) -> None:  # noqa: PLR0917
    prefilled = rng.randint(0, len(rows))
    offset = rng.randint(0, 2) if prefilled == 0 else 0
    input_ids = torch.tensor([token() for _ in range(len(rows) + 3)])
    for i, row in enumerate(rows):
        if i >= prefilled:
            # A row without the penalty is left behind, as no request ever is.
            histories[row - 1].append(int(input_ids[i + offset]))
    logits = random_logits(rng, len(rows), vocab)
    device_logits = clone(logits)
    lengths = torch.tensor([len(histories[row - 1]) for row in rows])
    inputs = StepInputs(torch.tensor(rows), lengths, input_ids, prefilled, offset)
    reference.step(state, logits, inputs, width=state.capacity)
    kernels.step(device_state, device_logits, to_device(inputs), width=state.capacity)
    assert_close(device_logits, logits)


def verify(kernels, rng, state, device_state, rows, histories, vocab) -> None:  # noqa: PLR0917
    nodes = rng.randint(1, 7)
    trees = [Tree.random(rng, rng.randrange(vocab), nodes) for _ in rows]
    first, sibling = zip(*(tree.links() for tree in trees), strict=True)
    paths = [[tree.path(node) for node in range(nodes)] for tree in trees]
    drafts = DraftTrees(
        request_rows=torch.tensor(rows),
        root=torch.tensor([len(histories[row - 1]) for row in rows]),
        tokens=torch.tensor([tree.tokens for tree in trees]),
        first_child=torch.tensor(first),
        next_sibling=torch.tensor(sibling),
        depth=max(len(path) for tree in paths for path in tree) + rng.randint(0, 2),
    )
    logits = random_logits(rng, len(rows) * nodes, vocab)
    device_logits = clone(logits)
    width = state.capacity
    expected = reference.verify(state, logits, drafts, width=width)
    got = kernels.verify(device_state, device_logits, to_device(drafts), width=width)
    assert_close(device_logits, logits)
    accepted = [rng.choice(tree) for tree in paths]
    for i, row in enumerate(rows):
        if state.params[row, 0] == 0:
            continue
        for node, path in enumerate(paths[i]):
            own, stated = got[i, node, : len(path)].cpu(), expected[i, node, : len(path)]
            own = torch.where(own < LEAST_ID, own ^ NUMBER_MARK, own)
            assert own.tolist() == stated.tolist()
        histories[row - 1] += [trees[i].tokens[node] for node in accepted[i]]
    accept_index = torch.tensor(
        [[i * nodes + node for node in (path + [0] * nodes)[:nodes]] for i, path in
         enumerate(accepted)], dtype=torch.int32,
    )  # fmt: skip
    correct = torch.tensor([len(path) - 1 for path in accepted], dtype=torch.int32)
    ends = AcceptedPaths(drafts.request_rows, drafts.root, expected, accept_index, correct)
    reference.accept(state, ends, width=width)
    kernels.accept(device_state, to_device(ends._replace(paths=got)), width=width)


Batch = TypeVar("Batch", StepInputs, DraftTrees, AcceptedPaths)


def to_device(batch: Batch) -> Batch:
    return type(batch)(
        *(part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in batch)
    )


def clone(logits: torch.Tensor) -> torch.Tensor:
    """A copy on the device with the same strides."""
    copy = torch.empty_strided(logits.shape, logits.stride(), dtype=logits.dtype, device=DEVICE)
    return copy.copy_(logits)


LONG = {
    "loop of one token": lambda t: 7,
    "two in turn": lambda t: t % 2,
    "all distinct": lambda t: t,
    "a loop of 40": lambda t: t % 40,
    "distinct, then its repeat": lambda t: t % 300,
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("window", [512, 8192])
def test_long_windows_of_the_worst_kinds(
    kernels_of_name: dict[str, ModuleType], name: str, case: str, window: int
) -> None:
    """All tokens are equal, or all are different; every match is cut off by B, or none is."""
    length, vocab = window + 100, window + 200
    history = [LONG[case](t) for t in range(length)]
    params = [(0.15, window, buffer, 0, rate, 0) for buffer in (32, window) for rate in (0, 1)]
    state = window_state(window, [history] * 4, params)
    device_state = on_device(state)
    logits = torch.randn(4, vocab)
    device_logits = clone(logits)
    inputs = StepInputs(
        request_rows=torch.arange(1, 5),
        seq_lens=torch.full((4,), length + 1),
        input_ids=torch.full((4,), LONG[case](length)),
        prefilled=0,
        offset=0,
    )
    reference.step(state, logits, inputs, width=window)
    kernels_of_name[name].step(device_state, device_logits, to_device(inputs), width=window)
    assert_close(device_logits, logits)
    assert_same(state, device_state, dict.fromkeys(range(1, 5), length + 1))


def test_the_same_bits_whenever_it_runs(cuda_kernels: ModuleType) -> None:
    rng = random.Random(0)
    rows, window = (64, 512) if ON_GPU else (3, 60)
    histories = [[rng.randrange(9) for _ in range(window + 9)] for _ in range(rows)]
    state = on_device(window_state(window, histories, [(0.15, window, 32, 0, 0, 0)] * rows))
    logits = torch.randn(rows, 40)
    inputs = StepInputs(
        request_rows=torch.arange(1, rows + 1),
        seq_lens=torch.full((rows,), window + 9),
        input_ids=torch.zeros(rows, dtype=torch.int64),
        prefilled=rows,
        offset=0,
    )
    runs = [clone(logits) for _ in range(50 if ON_GPU else 2)]
    for run in runs:
        cuda_kernels.step(state, run, to_device(inputs), width=window)
    assert all(torch.equal(run, runs[0]) for run in runs)
    assert not torch.equal(runs[0].cpu(), logits)


def test_circular_links_terminate(cuda_kernels: ModuleType) -> None:
    """Values in padding must not hang a GPU."""
    state = on_device(window_state(8, [[1, 2, 1]], [(0.5, 8, 4, 0, 0, 0)]))
    ring = torch.tensor([[1, 2, 3, 0]])
    trees = DraftTrees(
        request_rows=torch.tensor([1]),
        root=torch.tensor([3]),
        tokens=torch.tensor([[1, 2, 3, 4]]),
        first_child=ring,
        next_sibling=ring,
        depth=4,
    )
    logits = torch.zeros(4, 9, device=DEVICE)
    paths = cuda_kernels.verify(state, logits, to_device(trees), width=8)
    assert paths.shape == (1, 4, 4)
    assert torch.isfinite(logits).all()


def test_a_node_outside_the_tree_is_a_child_of_the_root() -> None:
    first, sibling = torch.tensor([[1, -1, -1, -1]]), torch.full((1, 4), -1)
    assert draft_tree.parents(first, sibling).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("name", [*KERNELS, "reference"])
@pytest.mark.parametrize("cost", COSTS)
def test_the_longest_distances_of_the_largest_window_are_exact_enough(
    kernels_of_name: dict[str, ModuleType], name: str, cost: str
) -> None:
    history = [1] + [2] * 2 + [3] * 4089 + [1, 2, 2]
    lz = LZParams(1.0, 8192, 8192, cost=cost)
    logits = stepped(kernels_of_name[name], history, 1, lz, 200_000)[1]
    delta = delta_bits(history, 200_000, 8192, 8192, cost)
    np.testing.assert_allclose(
        logits[:8].numpy(), np.array(delta[:8]) - np.log2(200_000), atol=TOLERANCE
    )


def test_the_bytes_of_a_row_are_what_it_takes() -> None:
    state = WindowState(3, 8, "cpu")
    taken = (state.tokens, state.run, state.params, state.cover)
    assert sum(tensor.nbytes for tensor in taken) == 3 * bytes_of_row(8)


def test_warming_up_runs_every_kernel_on_a_row_without_the_penalty(
    cuda_kernels: ModuleType,
) -> None:
    warm_up(cuda_kernels, 600, torch.device(DEVICE), {1, 3})


# Where barriers must stand among loads, stores and atomics: the interpreter needs none of them.
ORDER = {
    "_step": "L+BA+L?SSSSS",  # read all, lower the logits, keep runs, cover and the newest token
    "_verify": "L+SLLSBL+BA+",  # write the path, read all along it, lower the logits
    "_accept": "L+BL?SSSSLS",  # read all, keep runs, cover and the path
    "_forbid": "L+BLSS",  # read bits and logits, clear the bits and write
    "_seed": "L(LS)+",  # copy everything
}
# With histories, behind (`_accept`: before) that: find the path's tokens (SBL+SBL+BSSB), note
# repeats and n-grams and keep runs (AL+AS) of a wide block or of another, free the whitelist (A),
# lower the logits and keep counts, keep the rest (LSLSSSS), note what stops (LA); forbid: read bits
# and logits, then clear and write (BLSS).
HISTORY = "L+SBL+SBL+BSSB(L+AL+A{0}){{2}}BL+AL+SLS{1}"
FORBID = "BLALBL+BLSS"
ORDER_WITH_HISTORIES = {
    "_step": "LB" + HISTORY.format("S", "SSBLSLSSSS") + "L+" + FORBID,
    "_verify": "L+SLLSBL+BA+B" + HISTORY.format("", "") + "L+" + FORBID,
    "_accept": "L+SBL+SBL+BSSB(L+S){2}BL+SSBLSLSSSSL+BL?SSSSLS",
}


@pytest.mark.parametrize("is_profiled", [False, True])
def test_a_binary_is_looked_up_by_the_callers_key(
    monkeypatch: pytest.MonkeyPatch, is_profiled: bool
) -> None:
    """A profiler's hooks are called as by Triton. A launch is given the addresses of tensors, so
    that Triton does not ask the driver about each."""
    x = torch.zeros(1)
    calls: list[tuple[object, ...]] = []

    class Binary:
        function, packed_metadata = 11, "metadata"

        def run(self, *given: object) -> None:
            columns, rows, layers, *whose = given[:9]
            assert whose == ["stream of 3", 11, "metadata", None, None, None]
            calls.append(("launched", (columns, rows, layers), given[9:]))

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *arguments: calls.append(("hooked", grid, arguments))

    class Jit:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Binary]:
            def search(*arguments: object, **options: object) -> Binary:
                calls.append(("searched", grid, arguments, options))
                return Binary()

            return search

    def kernel(x_ptr, size, BLOCK, HISTORY):
        pass

    device = SimpleNamespace(
        get_current_device=lambda: 3, get_current_stream=lambda device: f"stream of {device}"
    )
    monkeypatch.setattr(launching, "driver", SimpleNamespace(active=device))
    if is_profiled:
        monkeypatch.setattr(launching.knobs.runtime.launch_enter_hook, "calls", [print])
    launched = launching.Kernel(kernel, lambda block, history: {"num_warps": block})
    launched.jit = Jit()
    elsewhere = torch.zeros(1, device="meta")
    for tensor, size, block, types in (
        (x, 7, 2, (torch.int32,)),
        (x, 8, 2, (torch.int32,)),
        (x, 8, 4, (torch.int32,)),
        (x, 9, 2, (torch.int64,)),
        (elsewhere, 9, 2, (torch.int64,)),
        (x, 1, 2, (torch.int32,)),
    ):
        launched((3, 5), tensor, size, constants=(block, True), types=types)
    way, given = ("hooked", x) if is_profiled else ("launched", x.data_ptr())
    assert calls == [
        ("searched", (3, 5), (x, 7, 2, True), {"num_warps": 2}),
        (way, (3, 5, 1), (given, 8, 2, True)),
        ("searched", (3, 5), (x, 8, 4, True), {"num_warps": 4}),
        ("searched", (3, 5), (x, 9, 2, True), {"num_warps": 2}),
        ("searched", (3, 5), (elsewhere, 9, 2, True), {"num_warps": 2}),
        (way, (3, 5, 1), (given, 1, 2, True)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param([512, 8192], id="default and largest"),
        pytest.param([128, 256, 1024, 2048, 4096], id="others", marks=pytest.mark.full),
    ],
)
def test_the_kernels_compile_for_hopper_in_order_and_within_their_budget(blocks: list[int]) -> None:
    """With the compiler that Triton brings, no GPU needed; in a process of its own, since here
    they are interpreted. A change that makes a program take more renews the budget, which its
    reviewer then sees."""
    script = Path(__file__).with_name("compile_cuda_kernels.py")
    command = [sys.executable, script, "--blocks", *map(str, blocks)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    programs = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(programs) == 3 * 2 * len(blocks) + 3
    for one in programs:
        kernel = one["kernel"]
        expected = ORDER[kernel]
        if one["histories"]:
            behind = ORDER_WITH_HISTORIES[kernel]
            expected = expected + behind if kernel == "_step" else behind
        assert re.fullmatch(expected, one["order"]), one
        assert one["stack"] == 0 or one["block"] > 2048, one
    budget = json.loads(script.with_name("kernel_budget.json").read_text())
    allowed = budget[".".join(triton.__version__.split(".")[:2])]
    assert allowed.keys() >= {one["name"] for one in programs}
    assert len(allowed) == 3 * 2 * 7 + 3
    for one in programs:
        over = {
            count: (one[count], most)
            for count, most in zip(budget["counts"], allowed[one["name"]], strict=True)
            if one[count] > most
        }
        assert not over, f"{one['name']} is over its budget: {over}; see compile_cuda_kernels.py"
