"""The windows of request rows, step by step, against the direct definition."""

from __future__ import annotations

from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracle import has_memory, match_lengths, run_lengths
from sglang_lz.fields.lz import LZParams
from sglang_lz.penalty.reference import steps as reference
from sglang_lz.penalty.reference.window_view import WindowView
from sglang_lz.penalty.window import MEMORY, ONSET, PARAMS, RowWindow, WindowState, bytes_of_row

CAPACITY = 8
tokens = st.lists(st.integers(0, 2), max_size=40)


def window_of(  # noqa: PLR0917
    history: list[int], window: int, buffer: int, first: int, onset: int = 0, prompt: int = 0
) -> RowWindow:
    """A window whose tokens are all on the host, the first of them a prompt."""
    start = first if onset else max(first, len(history) - window)
    sampled = max(prompt - start, 0)
    lz = LZParams(0.15, window, buffer, onset=onset)
    return RowWindow(array("q", history[start:]), sampled, len(history), first, lz)


def append(state: WindowState, rows: torch.Tensor, position: torch.Tensor, token: torch.Tensor):
    windows = WindowView.of(state, rows, position - 1, CAPACITY).advance(token)
    windows.keep(state, rows, position, new=1)


def assert_view(state: WindowState, row: int, history: list[int], case: tuple[int, int, int]):
    window, buffer, first = case
    visible = history[first:]
    seen = history[max(first, len(history) - window) :]
    view = WindowView.of(state, torch.tensor([row]), torch.tensor([len(history) - 1]), CAPACITY)
    length = int(view.length[0])
    assert length == len(seen)
    assert view.tokens[0, :length].tolist() == seen[::-1]
    expected = [0, *match_lengths(seen, buffer)[::-1]][:length]
    assert view.match[0, :length].tolist() == expected
    assert not view.match[0, length:].any()
    if state.params[row, ONSET]:  # what is always on needs no run that reaches past its window
        runs = [0, *run_lengths(visible, window).values()]
        assert view.run[0].tolist() == runs + [0] * (CAPACITY - window)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int]:
    window = draw(st.integers(1, CAPACITY))
    return window, draw(st.integers(1, window)), draw(st.integers(0, 12))


@given(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12), outputs=tokens, case=cases())
def test_appending_to_the_ring_equals_seeding_at_every_step(
    prompt: list[int], outputs: list[int], case: tuple[int, int, int]
) -> None:
    """Wrap-around, windows of 1, buffers of 1 and hidden prompts included."""
    window, buffer, first = case[0], case[1], min(case[2], len(prompt))
    state = WindowState(3, CAPACITY, "cpu")
    row = torch.tensor([1])
    reference.seed(state, {1: window_of(prompt, window, buffer, first)})
    history = list(prompt)
    assert_view(state, 1, history, (window, buffer, first))
    for token in outputs:
        history.append(token)
        append(state, row, torch.tensor([len(history) - 1]), torch.tensor([token]))
        assert_view(state, 1, history, (window, buffer, first))


@pytest.mark.slow
@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    loops=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=9), st.integers(1, 20)), max_size=3
    ),
    case=cases(),
    onset=st.integers(1, 4),
    resumed=st.integers(0, 200),
)
def test_runs_and_memory_after_a_retraction_equal_those_built_step_by_step(
    prompt: list[int],
    loops: list[tuple[list[int], int]],
    case: tuple[int, int, int],
    onset: int,
    resumed: int,
) -> None:
    """`case[2]` is 0 where the prompt is visible, else it hides all of it."""
    window, buffer, first = case[0], case[1], len(prompt) if case[2] else 0
    outputs = [token for text, times in loops for token in text * times]
    stepped, seeded = WindowState(2, CAPACITY, "cpu"), WindowState(2, CAPACITY, "cpu")
    reference.seed(stepped, {1: window_of(prompt, window, buffer, first, onset, len(prompt))})
    for count in range(len(outputs) + 1):
        history = [*prompt, *outputs[:count]]
        if count:
            last = torch.tensor([len(history) - 1])
            append(stepped, torch.tensor([1]), last, torch.tensor(history[-1:]))
        assert_view(stepped, 1, history, (window, buffer, first))
        memory = has_memory(prompt, outputs[:count], first == 0, window, onset)
        assert bool(stepped.cover[1, MEMORY]) == memory
        if count == resumed or count == len(outputs):
            again = {1: window_of(history, window, buffer, first, onset, len(prompt))}
            reference.seed(seeded, again)
            assert_view(seeded, 1, history, (window, buffer, first))
            assert torch.equal(seeded.cover, stepped.cover)


@given(
    histories=st.lists(tokens.filter(bool), min_size=3, max_size=3),
    mixed=st.lists(cases(), min_size=3, max_size=3),
    order=st.permutations([0, 1, 2]),
    extra=st.lists(st.integers(0, 2), min_size=3, max_size=3),
)
def test_rows_do_not_disturb_each_other(
    histories: list[list[int]],
    mixed: list[tuple[int, int, int]],
    order: list[int],
    extra: list[int],
) -> None:
    """Rows of one batch at different positions, with different parameters, in any order."""
    state = WindowState(4, CAPACITY, "cpu")
    for row, (history, (window, buffer, _)) in enumerate(zip(histories, mixed, strict=True)):
        reference.seed(state, {row: window_of(history, window, buffer, 0)})
    rows = torch.tensor(order)
    position = torch.tensor([len(histories[row]) for row in order])
    append(state, rows, position, torch.tensor([extra[row] for row in order]))
    for row, (window, buffer, _) in enumerate(mixed):
        assert_view(state, row, [*histories[row], extra[row]], (window, buffer, 0))


def test_a_row_given_to_another_request_forgets_its_history() -> None:
    state = WindowState(1, CAPACITY, "cpu")
    row = torch.tensor([0])
    reference.seed(state, {0: window_of([0, 1] * 10, 8, 8, 0)})
    reference.seed(state, {0: window_of([2, 0], 8, 8, 0)})
    for position, token in ((2, 2), (3, 0)):
        append(state, row, torch.tensor([position]), torch.tensor([token]))
    assert_view(state, 0, [2, 0, 2, 0], (8, 8, 0))


def test_bytes_of_row_is_the_allocated_size() -> None:
    state = WindowState(3, CAPACITY, "cpu")
    tensors = (state.tokens, state.run, state.params, state.cover)
    taken = sum(tensor.nbytes for tensor in tensors)
    assert 3 * bytes_of_row(CAPACITY) == taken
    assert state.params.shape == (3, PARAMS)
