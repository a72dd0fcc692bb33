"""The batches that `bench.serving static` measures, on upstream's model runner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from inprocess import LZ, Runner, assert_changed, change

pytestmark = pytest.mark.slow

INPUTS, OUTPUTS = 8, 12


def run_pass(runner: Runner, number: int, *variants: dict[str, Any]) -> list[dict[str, Any]]:
    from bench.serving.turns import Settings, run_pass

    sizes = {"batch_size": 2, "input_len": INPUTS, "output_len": OUTPUTS}
    settings = Settings([*variants], sizes, blocks=1, results="")
    return run_pass(runner.bench, None, settings, number)


def prompts(runner: Runner, number: int) -> list[list[int]]:
    vocabulary = runner.bench.torch_runner.model_config.vocab_size
    drawn = np.random.default_rng(number).integers(0, vocabulary, (2, INPUTS))
    return [[*map(int, row)] for row in drawn]


def steps_of_two(steps: list[Any]) -> tuple[list[Any], list[Any]]:
    """Those of each of two batches: their prefills, then turns of a step, every other reversed."""
    first, second = steps[0:1], steps[1:2]
    for turn, place in enumerate(range(2, len(steps), 2)):
        one, other = steps[place : place + 2][:: -1 if turn % 2 else 1]
        first.append(one)
        second.append(other)
    return first, second


def test_every_measured_step_has_the_penalty_of_its_own_batch(runner: Runner) -> None:
    lines = run_pass(runner, 0, {}, LZ)
    plain, penalized = steps_of_two(runner.seen)
    assert len(plain) == len(penalized) == OUTPUTS
    assert all(before.equal(after) for before, after in plain)
    histories = prompts(runner, 0)
    for before, after in penalized:
        for old, new, history in zip(before, after, histories, strict=True):
            assert_changed(old, new, change(history, LZ, len(old)))
            history.append(int(new.argmax()))
    for line in lines:
        assert line["prefill_seconds"] > 0
        assert len(line["step_seconds"]) == OUTPUTS - 1
        assert min(line["step_seconds"]) > 0


def test_the_pass_back_has_the_same_prompts_and_the_variants_in_reverse(runner: Runner) -> None:
    run_pass(runner, 0, {}, LZ)
    forth = runner.seen[:2]
    runner.seen.clear()
    run_pass(runner, 1, {}, LZ)
    back = runner.seen[:2]
    assert [before.equal(after) for before, after in forth] == [True, False]
    assert [before.equal(after) for before, after in back] == [False, True]
    for (before, _), (again, _) in zip(forth, back, strict=True):
        assert before.allclose(again, atol=1e-4)


def test_upstreams_own_penalties_change_their_batch_and_no_other(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.serving.models import UPSTREAM
    from sglang_lz.scheduler import sampling

    sampled: list[torch.Tensor] = []
    monkeypatch.setattr(sampling, "forbid_step", lambda logits, _: sampled.append(logits.clone()))
    run_pass(runner, 0, {}, {UPSTREAM: True})
    changed = [logits != before for logits, (before, _) in zip(sampled, runner.seen, strict=True)]
    plain, penalized = steps_of_two(changed)
    assert len(plain) == len(penalized) == OUTPUTS
    assert not any(step.any() for step in (*plain, penalized[0]))
    # Upstream counts the newest token of a request's outputs, or of its prompt, as here.
    last = [[row, prompt[-1]] for row, prompt in enumerate(prompts(runner, 0))]
    assert all(step.nonzero().tolist() == last for step in penalized[1:])


def test_batches_that_do_not_fit_into_the_cache_are_refused(runner: Runner) -> None:
    from bench.serving.turns import Settings, check_room

    sizes = {"batch_size": 5, "input_len": INPUTS, "output_len": OUTPUTS}
    settings = Settings([{}, LZ], sizes, blocks=1, results="")
    with pytest.raises(SystemExit, match=r"2 batches of 5 requests .* room for 8:"):
        check_room(runner.bench, settings)
