"""The patches of upstream's benchmark tools, held to what their headers promise."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from inprocess import LZ, Runner

pytestmark = pytest.mark.slow

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 10, 9, 10, 9, 10, 9, 10]]


def one_batch_arguments(*arguments: str) -> Any:
    from sglang.benchmark.one_batch import BenchArgs

    parser = argparse.ArgumentParser()
    BenchArgs.add_cli_args(parser)
    return BenchArgs.from_cli_args(parser.parse_args(arguments))


class TestOneBatch:
    """bench/one-batch"""

    def run_once(self, runner: Runner, fields: dict[str, Any]) -> None:
        """One measurement of 12 output tokens."""
        from sglang.benchmark import one_batch

        from sglang_lz.upstream_benchmarks import penalize

        reqs = one_batch.prepare_synthetic_inputs_for_latency_test(2, 8, PROMPTS)
        penalize(reqs, fields, 12)
        quiet = {"profile": False, "profile_record_shapes": False, "profile_activities": ()}
        one_batch.latency_test_run_once(
            "test",
            runner.bench,
            lambda line: None,
            reqs,
            *(2, 8, 12),
            log_decode_step=0,
            **quiet,
            profile_prefix="",
            profile_stage="all",
            tp_rank=0,
        )

    def test_every_measured_step_has_the_penalty_of_the_tokens_before_it(
        self, runner: Runner
    ) -> None:
        self.run_once(runner, LZ)
        histories = [list(prompt) for prompt in PROMPTS]
        steps = runner.seen
        assert len(steps) == 12
        for step in steps:
            runner.seen = [step]
            runner.assert_exact(histories)
            for history, logits in zip(histories, step[1], strict=True):
                history.append(int(logits.argmax()))

    def test_a_measurement_with_a_penalty_leaves_the_next_one_unchanged(
        self, runner: Runner
    ) -> None:
        self.run_once(runner, LZ)
        runner.seen.clear()
        self.run_once(runner, {"lz_penalty": 0.0})
        assert len(runner.seen) == 12
        for before, after in runner.seen:
            assert before.equal(after)

    def test_wrong_values_are_refused_before_a_model_is_loaded(self) -> None:
        for fields, words in (
            ('{"lz_penalty": 11}', r"lz_penalty must be .*\[0, 10\], got 11"),
            ('{"lz_penalty": NaN}', r"lz_penalty must be .*\[0, 10\], got nan"),
            ('{"lz_window_size": 0}', r"lz_window_size must be .*\[1, 8192\].*, got 0"),
            (
                '{"lz_window_size": 8, "lz_buffer_size": 9}',
                r"lz_buffer_size must be .*\[1, 8\].* got 9",
            ),
            ('{"lz_cost": "cheap"}', r"lz_cost must be .*, got 'cheap'"),
        ):
            with pytest.raises(ValueError, match=words):
                one_batch_arguments("--lz-variants", "{}", fields)
