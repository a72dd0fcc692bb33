"""The patches of upstream's benchmark tools, held to what their headers promise."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

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
        for arguments, words in (
            ("--lz-penalty 0 11", r"lz_penalty must be .*\[0, 10\], got 11"),
            ("--lz-penalty nan", r"lz_penalty must be .*\[0, 10\], got nan"),
            ("--lz-window-size 0", r"lz_window_size must be .*\[1, 8192\].*, got 0"),
            ("--lz-window-size 8 --lz-buffer-size 9", r"lz_buffer_size must be .*\[1, 8\].* got 9"),
            ("--lz-cost cheap", r"lz_cost must be .*, got 'cheap'"),
        ):
            with pytest.raises(ValueError, match=words):
                one_batch_arguments(*arguments.split())


class TestServing:
    """bench/serving"""

    def bodies(
        self, monkeypatch: pytest.MonkeyPatch, backend: str, *arguments: str
    ) -> list[dict[str, Any]]:
        """The bodies that a server gets from one request of the command line's."""
        from sglang.benchmark import serving

        received: list[dict[str, Any]] = []

        async def answer(request: web.Request) -> web.Response:
            received.append(await request.json())
            return web.Response(status=400)

        async def benchmark(*, extra_request_body: dict[str, Any], api_url: str, **_: Any) -> None:
            app = web.Application()
            app.router.add_post("/{path:.*}", answer)
            async with TestServer(app) as server:
                request = serving.RequestFuncInput(
                    prompt=[{"role": "user", "content": "Hello"}] if "chat" in backend else "Hello",
                    api_url=str(server.make_url(api_url.removeprefix("http://nowhere"))),
                    prompt_len=1,
                    output_len=7,
                    model="m",
                    lora_name="",
                    image_data=None,
                    extra_request_body=extra_request_body,
                )
                await serving.ASYNC_REQUEST_FUNCS[backend](request)

        monkeypatch.setattr(serving, "benchmark", benchmark)
        for name in ("get_tokenizer", "get_dataset", "check_chat_template"):
            monkeypatch.setattr(serving, name, lambda *args: None)
        command = ["serving", "--backend", backend, "--base-url", "http://nowhere"]
        command += ["--model", "m", "--tokenizer", "m", "--ready-check-timeout-sec", "0"]
        monkeypatch.setattr(sys, "argv", [*command, *arguments])
        serving.cli_main()
        return received

    PENALTY = ("--lz-penalty", "0.2", "--lz-buffer-size", "16", "--lz-include-prompt")
    FIELDS = {"lz_penalty": 0.2, "lz_buffer_size": 16, "lz_include_prompt": True}  # noqa: RUF012

    @pytest.mark.parametrize("backend", ["sglang", "sglang-native"])
    def test_generate_gets_them_among_its_sampling_parameters(
        self, monkeypatch: pytest.MonkeyPatch, backend: str
    ) -> None:
        extra = ("--extra-request-body", '{"return_logprob": true}')
        (body,) = self.bodies(monkeypatch, backend, *self.PENALTY, *extra)
        plain = {"temperature": 0.0, "max_new_tokens": 7, "ignore_eos": True}
        assert body["sampling_params"] == plain | self.FIELDS
        assert body["return_logprob"] is True
        assert not body.keys() & self.FIELDS.keys()

    @pytest.mark.parametrize("backend", ["sglang-oai", "sglang-oai-chat"])
    def test_openai_requests_get_them_at_the_top_level(
        self, monkeypatch: pytest.MonkeyPatch, backend: str
    ) -> None:
        (body,) = self.bodies(monkeypatch, backend, *self.PENALTY)
        assert body.items() >= self.FIELDS.items()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ("--backend trt", "need one of the backends sglang, .*got trt"),
            ("--rust-client", "without --rust-client"),
            ("--lz-penalty -1", r"lz_penalty must be .*\[0, 10\], got -1"),
        ],
    )
    def test_fields_that_would_be_dropped_are_refused(
        self, monkeypatch: pytest.MonkeyPatch, arguments: str, words: str
    ) -> None:
        with pytest.raises(ValueError, match=words):
            self.bodies(monkeypatch, "sglang", *self.PENALTY, *arguments.split())
