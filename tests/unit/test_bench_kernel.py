"""What bench.kernel compares, against the oracle and plain definitions; no time is asserted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any

import pytest
import torch

import oracle
from bench.kernel import cases, host, implementations, result, timing
from bench.kernel.inputs import (
    HISTORIES,
    LZ_PENALTY,
    PARENTS,
    Case,
    Inputs,
    path_to_root,
    touched_bytes,
)
from bench.kernel.names import COPY, DENSE, DRY, EMPTY, MEMORY, ONSET_2, OURS, REFERENCE, UPSTREAM
from sglang_lz.penalty.kernels import cpu as cpu_kernels
from sglang_lz.penalty.reference import steps as reference

VOCAB = 24
CPU = torch.device("cpu")


def random_windows(rows: int, width: int) -> torch.Tensor:
    """Few tokens, so that much matches; newest first."""
    generator = torch.Generator().manual_seed(rows + width)
    return torch.randint(3, (rows, width), generator=generator)


def inputs_of(history: str, nodes: int = 0, sets: int = 2) -> Any:
    case = Case(rows=2, vocab=VOCAB, window=9, buffer=4, history=history, nodes=nodes)
    return Inputs(case, CPU, sets, steps=4)


def penalised(inputs: Any, seen: Sequence[int]) -> list[float]:
    """The logits that the oracle takes from a token for what a row has seen, oldest first."""
    case = inputs.case
    delta = oracle.delta_bits(seen, case.vocab, case.window, case.buffer, oracle.MARGINAL)
    literal = max(oracle.delta_bits([], case.vocab, 1, 1, oracle.MARGINAL))
    return [LZ_PENALTY * (literal - bits) for bits in delta]


@pytest.mark.parametrize("buffer", [1, 4, 12])
def test_compared_matches_equal_the_oracle(buffer: int) -> None:
    windows = random_windows(rows=5, width=12)
    for window, got in zip(windows, implementations.compared_matches(windows, buffer), strict=True):
        expected = oracle.match_lengths(window.tolist()[::-1], buffer)
        assert got.tolist() == [0, *expected[::-1]]


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("way", ["ours", "reference", "dense", "dense in slices"])
def test_every_step_equals_the_oracle(history: str, way: str) -> None:
    inputs = inputs_of(history)
    implementation = {
        "ours": lambda: implementations.Step(inputs, cpu_kernels, None),
        "reference": lambda: implementations.Step(inputs, reference, None),
        "dense": lambda: implementations.Dense(inputs, 2, 2**20),
        "dense in slices": lambda: implementations.Dense(inputs, 2, 1),
    }[way]()
    got = timing.outputs(implementation, inputs)
    for step in range(timing.CHECKED_STEPS):
        for row in range(2):
            seen = inputs.history[row, : inputs.case.window + step + 1].tolist()
            expected = inputs.fresh[row] - torch.tensor(penalised(inputs, seen))
            torch.testing.assert_close(got[step, row], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("history", ["text", "loop"])
@pytest.mark.parametrize("kernels", [cpu_kernels, reference], ids=["ours", "reference"])
def test_every_node_equals_the_oracle(kernels: ModuleType, history: str) -> None:
    inputs = inputs_of(history, nodes=len(PARENTS))
    got = timing.outputs(implementations.Verify(inputs, kernels, None), inputs)
    inputs.rewind()
    for step in range(timing.CHECKED_STEPS):
        inputs.advance()
        for row in range(2):
            before = inputs.history[row, : inputs.position].tolist()
            for node in range(inputs.case.nodes):
                nodes = path_to_root(node)[::-1]
                drafts = [int(inputs.drafts[0, row, ancestor]) for ancestor in nodes]
                at = row * inputs.case.nodes + node
                lowered = torch.tensor(penalised(inputs, before + drafts))
                expected = inputs.fresh[at] - lowered
                torch.testing.assert_close(got[step, at], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("buffer", [3, 12])
def test_dry_equals_its_definition(buffer: int) -> None:
    windows = random_windows(rows=5, width=12)
    logits = torch.randn(5, VOCAB)
    expected = logits.clone()
    for row, window in enumerate(windows.tolist()):
        h = window[::-1]
        lowered: dict[int, float] = {}
        for source, length in enumerate(oracle.match_lengths(h, buffer)):
            if length >= implementations.DRY_ALLOWED_LENGTH:
                exponent = length - implementations.DRY_ALLOWED_LENGTH
                penalty = implementations.DRY_MULTIPLIER * implementations.DRY_BASE**exponent
                following = h[source + 1]
                lowered[following] = max(lowered.get(following, 0.0), penalty)
        for token, penalty in lowered.items():
            expected[row, token] -= penalty
    implementations.dry_penalise(logits, windows, buffer)
    torch.testing.assert_close(logits, expected)


def test_the_stand_in_equals_upstream() -> None:
    pytest.importorskip("sglang")
    make, _, is_upstream = implementations.upstream_penalties()
    assert is_upstream
    found = []
    for penalties in (make(2, VOCAB, CPU), implementations.Penalties(2, VOCAB, CPU)):
        for tokens in ([3, 5], [3, 1]):
            penalties.cumulate_output_tokens(torch.tensor(tokens))
        additive = torch.zeros(2, VOCAB)
        penalties.accumulate_additive_penalties(additive)
        found.append((additive, penalties.accumulate_scaling_penalties()))
    torch.testing.assert_close(found[1], found[0])
    assert found[0][0][0, 3] == -2 * implementations.FREQUENCY_PENALTY


def test_scaling_makes_every_logit_smaller() -> None:
    logits = torch.tensor([[2.0, -2.0, 3.0]])
    implementations.scale(logits, torch.tensor([[2.0, 2.0, 1.0]]))
    assert logits.tolist() == [[1.0, -4.0, 3.0]]


def test_histories_are_what_they_are_called() -> None:
    distinct, loop, alternating = (
        inputs_of(name).history for name in ("distinct", "loop", "alternating")
    )
    assert all(len(set(row)) == len(row) for row in distinct.tolist())
    assert all(len(set(row)) == 1 for row in loop.tolist())
    assert all(len(set(row)) == 2 for row in alternating.tolist())
    assert torch.equal(alternating[:, 2:], alternating[:, :-2])


def test_touched_bytes_of_a_step() -> None:
    case = Case(rows=2, vocab=VOCAB, window=4, buffer=2)
    windows = torch.tensor([[0, 7, 8, 0], [23, 16, 15, 1]])  # 8 float32 logits a sector
    window = 4 * 4 + 4 * 2 + 5 * 4  # tokens, match lengths, parameters
    others = 3 * 8 + 4 * 2 + 4  # row, place and newest token; match lengths and a token, written
    expected = 2 * 32 * (2 + 3) + 2 * (window + others)
    assert touched_bytes(case, windows) == expected


def test_judged_windows_follow_the_paths_of_a_tree() -> None:
    inputs = inputs_of("text", nodes=len(PARENTS))
    inputs.advance()
    row = inputs.judged_windows().view(2, len(PARENTS), -1)[1]
    history, end = inputs.history[1], inputs.position
    assert row[0].tolist() == history[: end + 1].flip(0)[:9].tolist()
    assert row[6].tolist() == history[: end + 4].flip(0)[:9].tolist()  # the accepted path


def test_a_wrong_implementation_ends_the_run() -> None:
    case = Case(rows=2, vocab=VOCAB)
    expected = torch.randn(1, 2, VOCAB)
    timing.check(case, "right", expected[:, :1] + 5e-5, expected)
    with pytest.raises(SystemExit, match="wrong is off by"):
        timing.check(case, "wrong", expected + 1e-2, expected)
    with pytest.raises(SystemExit):
        timing.check(case, "not a number", expected * torch.nan, expected)


def test_a_case_gives_a_row_for_each_implementation() -> None:
    effort = timing.Effort(2**20, 2, 3, 1e-3, cells=1e5, slice_bytes=2**20, checked_cells=1e5)
    bench = cases.Bench(CPU, effort, quick=True)
    case = Case(rows=2, vocab=VOCAB, window=16, buffer=4)
    rows = list(bench.measure(case))
    names = [OURS, ONSET_2, MEMORY, REFERENCE, DENSE, UPSTREAM, DRY, COPY]
    assert [row["implementation"] for row in rows] == names
    assert all(set(row) == set(cases.COLUMNS) for row in rows)
    assert all(row["median_us"] > 0 for row in rows)
    assert str(case) in result.text_table(rows)
    large = list(bench.measure(Case(rows=2, vocab=4096, window=16, buffer=4)))
    skipped = {row["implementation"]: row["note"] for row in large if row["median_us"] is None}
    assert skipped == {DENSE: "skipped: 1.3e+05 comparisons"}
    assert "skipped: 1.3e+05 comparisons" in result.text_table(large)


def found(name: str, timing: str, us: float, **sizes: Any) -> dict[str, Any]:
    case = asdict(Case(**{"rows": 64, **sizes}))
    return {"implementation": name, **case, "timing": timing, "median_us": us}


def target(rows: list[dict[str, Any]], words: str) -> tuple[float | None, bool | None]:
    (only,) = [entry for entry in result.targets(rows) if words in entry["target"]]
    return only["measured"], only["met"]


def test_targets_take_the_worst_history() -> None:
    rows = [
        found(OURS, "graph", 5.0),
        found(OURS, "graph", 8.5, history="loop"),
        found(OURS, "graph", 99.0, window=1024),
        found(OURS, "graph", 19.0, rows=512),
        found(DENSE, "graph", 1e6),
    ]
    assert target(rows, "GPU time at 64 rows, worst history") == (8.5, False)
    assert target(rows, "GPU time at 512 rows, worst") == (19.0, True)
    assert target(rows, "CPU time at") == (None, None)
    rows = [found(OURS, "CPU", 900.0), found(OURS, "CPU", 1e4, window=1024)]
    assert target(rows, "CPU time at") == (900.0, True)


def test_flatness_needs_both_ends() -> None:
    rows = [found(OURS, "graph", 5.0, vocab=32768), found(OURS, "graph", 6.0)]
    assert target(rows, "256k at 64 rows") == (None, None)
    rows.append(found(OURS, "graph", 5.2, vocab=262144))
    assert target(rows, "256k at 64 rows") == (20.0, False)
    assert target(rows, "256k at 512 rows") == (None, None)


def test_launch_to_finish_is_a_ratio() -> None:
    rows = [
        found(OURS, "launch to finish", 12.0, rows=1),
        found(EMPTY, "launch to finish", 10.0, rows=1),
    ]
    assert target(rows, "launch to finish") == (1.2, True)


def test_what_the_host_does_has_a_row_for_each_case() -> None:
    rows = list(host.measure(CPU, rounds=2, quick=True))
    assert all(tuple(row) == host.COLUMNS for row in rows)
    assert all(row["median_us"] > 0 for row in rows)
    idle = {row["what"] for row in rows} - {host.PREFILL, host.RESUMED}
    assert idle == {
        f"{what}, {held}"
        for what in (host.NO_PENALTY, host.PREFILL_NO_PENALTY)
        for held in ("no window held", "a window held elsewhere")
    }
    assert {row["seen"] for row in rows if row["what"] == host.PREFILL} == {0, 512}
    assert {row["seen"] for row in rows if row["what"] == host.RESUMED} == {host.OUTPUTS}
    assert host.PREFILL in host.text_table(rows)


@pytest.mark.parametrize("seen", [0, 5])
def test_a_measured_prefill_fills_the_windows(seen: int) -> None:
    pool = host.pool_of(4, 16, CPU)
    tokens = [1, 2, 1, 2, 1, 2, 1]
    with host.unified_server():
        host.start(host.batch_of(pool, range(1, 3), tokens, seen))
    state = pool.lz_penalizer.state
    assert state.params[:, 0].tolist() == pytest.approx([0, 0.15, 0.15, 0])
    runs = [0, *oracle.run_lengths(tokens[-seen:], seen).values()] if seen else []
    assert state.run[2, :seen].tolist() == runs


def test_targets_of_a_request_s_start_are_for_one_and_for_many() -> None:
    def row(seen: int, requests: int, us: float) -> dict[str, Any]:
        return {"what": host.PREFILL, "seen": seen, "requests": requests, "median_us": us}

    rows = [row(0, 1, 40.0), row(0, 64, 1.9), row(512, 64, 7.0), row(512, 64, 9.0)]
    rows += [row(512, 1, 9.0), row(512, 16, 99.0)]
    measured = {
        entry["target"]: (entry["measured"], entry["met"]) for entry in result.targets([], rows)
    }
    of_start = [value for name, value in measured.items() if "prefill" in name]
    assert of_start == [
        *((40.0, False), (1.9, True)),
        *((9.0, True), (9.0, False)),
        *((None, None), (None, None)),
    ]
