"""The process that measures a static batch: one batch of each variant, which decode in turns.

It runs requests on upstream's model runner without a server, with the functions of upstream's
`sglang.benchmark.one_batch`. All batches have the same prompts and hold their places in the cache
at the same time. They take turns of a few steps, so that what disturbs the machine for longer than
that disturbs all of them. A turn's steps are launched one after the other and waited for at its
end, so the host may run ahead of a GPU, as it does in a server.

    python -m bench.serving.turns SETTINGS SGLANG_ARGUMENTS...    # SETTINGS: `Settings` in JSON
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sglang.benchmark import one_batch
from sglang.srt.server_args import prepare_server_args

from bench.kernel.implementations import upstream_penalties
from bench.serving.models import UPSTREAM
from sglang_lz.http.admission import admit, other_fields

T = TypeVar("T")

TURN_STEPS = 16
"""On a GPU; one on a CPU, ahead of which nothing runs. The first step of a turn costs the host a
little more, as when a server's batch changes."""


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        variants: sampling parameters of each batch.
        sizes: of a batch: `batch_size` requests of `input_len` and `output_len` tokens each.
        blocks: how many; each is a pass over the variants and the same backwards.
        results: the file that gets a line for each run, in the order of `slowdowns.order`:
            the sizes, seconds of the prefill, and seconds of a step in each turn.
    """

    variants: list[dict[str, Any]]
    sizes: dict[str, int]
    blocks: int
    results: str


def main() -> None:
    """Run the command line."""
    settings = Settings(**json.loads(sys.argv[1]))
    arguments = one_batch.BenchArgs(batch_size=(settings.sizes["batch_size"],))
    arguments.settings = settings
    # Upstream's `main` chooses the graphs and starts a process for each GPU, which runs this.
    one_batch.latency_test = run_rank
    one_batch.main(prepare_server_args(sys.argv[2:]), arguments)


def load(server_args: Any, port_args: Any, gpu_id: int = 0, tp_rank: int = 0) -> tuple[Any, Any]:
    """Upstream's runner of the model on a GPU or the CPU, and its tokenizer."""
    world_rank = one_batch.spawn_world_rank(server_args, tp_rank=tp_rank, pp_rank=0)
    ranks = one_batch.SpawnRanks(world_rank=world_rank, gpu_id=gpu_id)
    one_batch.publish(server_args, role="scheduler", ranks=ranks)
    one_batch._init_process_global_configs()
    one_batch.configure_logger(server_args, prefix=f" TP{tp_rank}")
    runner, tokenizer = one_batch.load_model(server_args, port_args, gpu_id, tp_rank)
    return runner, tokenizer


def run_rank(server_args: Any, port_args: Any, arguments: Any, gpu_id: int, tp_rank: int) -> None:
    """Measure on a GPU or the CPU; rank 0 writes the results."""
    runner, tokenizer = load(server_args, port_args, gpu_id, tp_rank)
    settings: Settings = arguments.settings
    check_room(runner, settings)
    for number in range(2 * settings.blocks):
        for line in run_pass(runner, tokenizer, settings, number):
            if tp_rank == 0:
                with Path(settings.results).open("a") as file:
                    file.write(json.dumps(line) + "\n")


def check_room(runner: Any, settings: Settings) -> None:
    """Exit unless all batches fit into the cache at once."""
    batches, requests_of_each = len(settings.variants), settings.sizes["batch_size"]
    runner.clear()
    room = min(
        runner.max_batch_size(settings.sizes["input_len"], settings.sizes["output_len"]),
        runner.torch_runner.req_to_token_pool.available_size(),
    )
    if requests_of_each * batches > room:
        raise SystemExit(
            f"{batches} batches of {requests_of_each} requests must be held at once, and there is "
            f"room for {room}: lower --batch-size, or raise --max-total-tokens and "
            "--max-running-requests after --."
        )


def run_pass(runner: Any, tokenizer: Any, settings: Settings, number: int) -> list[dict[str, Any]]:
    """Prefill and decode a batch of each variant.

    Args:
        runner: upstream's, of one rank.
        tokenizer: the model's, which says what tokens are numbers.
        settings: what is measured.
        number: of the pass; an odd one goes through the variants backwards, with the prompts of the
            pass before.

    Returns:
        A result line for each variant, in the order of the pass.
    """
    variants = settings.variants[:: -1 if number % 2 else 1]
    vocabulary = runner.torch_runner.model_config.vocab_size
    sizes = settings.sizes
    shape = sizes["batch_size"], sizes["input_len"]
    prompts = np.random.default_rng(number // 2).integers(0, vocabulary, shape).tolist()
    runner.clear()
    batches = []
    for fields in variants:
        own = {name: value for name, value in fields.items() if name != UPSTREAM}
        reqs = requests(prompts, tokenizer, own, sizes["output_len"])
        batches.append(_Batch(runner, reqs, has_upstreams=UPSTREAM in fields))
    of_turn = 1 if runner.torch_runner.device == "cpu" else TURN_STEPS
    for turn, done in enumerate(range(1, sizes["output_len"], of_turn)):
        for batch in batches[:: -1 if turn % 2 else 1]:
            batch.decode(min(of_turn, sizes["output_len"] - done))
    return [
        sizes | {"prefill_seconds": batch.prefill, "step_seconds": batch.steps} for batch in batches
    ]


class _Batch:
    """A batch of one variant, with the seconds that it has taken."""

    def __init__(self, runner: Any, reqs: list[Any], *, has_upstreams: bool) -> None:
        self._runner = runner
        (self._tokens, logits, self._batch), self.prefill = self._timed(lambda: runner.extend(reqs))
        self.steps: list[float] = []
        if has_upstreams:
            rows, vocabulary = logits.shape
            penalties = upstream_penalties(rows, vocabulary, logits.device)
            self._batch.sampling_info.penalizer_orchestrator = penalties

    def decode(self, steps: int) -> None:
        """Decode so many tokens of each request."""

        def launch() -> None:
            for _ in range(steps):
                self._tokens, _ = self._runner.decode(self._tokens, self._batch)

        _, seconds = self._timed(launch)
        self.steps.append(seconds / steps)

    def _timed(self, call: Callable[[], T]) -> tuple[T, float]:
        self._runner.synchronize()
        before = time.perf_counter()
        result = call()
        self._runner.synchronize()
        return result, time.perf_counter() - before


def requests(
    prompts: Sequence[Sequence[int]], tokenizer: Any, fields: dict[str, Any], output_len: int
) -> list[Any]:
    """Upstream's requests with these prompts, admitted with sampling parameters as by a server.

    Raises:
        ValueError: the fields are wrong for the server arguments in effect, such as a window above
            --lz-max-window-size.
    """
    reqs: list[Any] = one_batch.prepare_synthetic_inputs_for_latency_test(
        len(prompts), len(prompts[0]), prompts
    )
    for req in reqs:
        req.tokenizer = tokenizer
        req.sampling_params.max_new_tokens = output_len
        for name, value in other_fields(fields).items():
            setattr(req.sampling_params, name, value)
        admit(req.sampling_params, fields, is_encoder_decoder=False, has_input_embeds=False)
    return reqs


if __name__ == "__main__":
    main()
