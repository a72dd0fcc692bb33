"""The cost of the LZ penalty on the scheduler's thread."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from bench.kernel.inputs import HISTORIES, LZ_PENALTY, VOCAB
from lz_penalty.fields.histories import NEUTRAL, UPSTREAM
from lz_penalty.fields.lz import DEFAULT_MAX_WINDOW_SIZE, LZParams
from lz_penalty.penalizer import Penalizer
from sglang_lz.scheduler import sampling

PREFILL = "prefill, a request"
RESUMED = "resumption after a retraction, a request"
NO_PENALTY = "decode without the penalty"
PREFILL_NO_PENALTY = "prefill without the penalty"
BATCHES = (1, 16, 64)
WINDOWS = (0, 512, 8192)
OUTPUTS, ONSET = 32_768, 3
"""Of a request that resumes."""
POOLS = (4096, 100_000)
DECODING = 64
CALLS = 10  # between two readings of the clock, each of which takes about as long as a short call
SECONDS = 0.2
"""Of samples at least: thirty of a short call would fit into one slow moment of a machine."""

COLUMNS = ("what", "requests", "seen", "history", "pool", "median_us", "p10_us", "p90_us")


class _Mode:
    """The methods of upstream's ForwardMode that planning a step calls."""

    def __init__(self, decode: bool) -> None:
        self.decode = decode

    def is_decode(self) -> bool:
        return self.decode

    def is_mixed(self) -> bool:
        return False

    def is_extend_without_speculative(self) -> bool:
        return not self.decode


RUNNER: Any = SimpleNamespace(
    is_draft_worker=False, is_generation=True, pp_group=SimpleNamespace(is_last_rank=True)
)


# A request without a penalty over its whole history.
NO_OTHERS = {"history_params": None, **{name: NEUTRAL[name] for name in UPSTREAM}}


def pool_of(rows: int, capacity: int, device: torch.device) -> Any:
    """A pool of so many request rows with empty windows of `capacity` tokens."""
    generations = torch.ones(rows, dtype=torch.int64)
    return SimpleNamespace(lz_penalizer=Penalizer(generations, capacity, device))


def batch_of(pool: Any, rows: range, tokens: list[int] | None, window: int, onset: int = 0) -> Any:
    """A batch of requests in these rows, decoding, or at prefill with a penalty on these tokens.

    The tokens are a prompt, or with an onset outputs.
    """
    reqs: list[Any] = [None] * len(rows)
    if tokens is not None:
        sees_prompt = bool(window) and not onset
        lz = LZParams(LZ_PENALTY, window or 512, include_prompt=sees_prompt, onset=onset)
        params = SimpleNamespace(lz_params=lz, max_new_tokens=64, **NO_OTHERS)
        ids = array("q", tokens)
        reqs = [
            SimpleNamespace(
                sampling_params=params,
                origin_input_ids=ids[:0] if onset else ids,
                full_untruncated_fill_ids=ids,
                extend_end=len(ids),
            )
        ] * len(rows)
    return SimpleNamespace(
        forward_mode=_Mode(decode=tokens is None),
        reqs=reqs,
        req_pool_indices_cpu=torch.arange(rows.start, rows.stop),
        req_to_token_pool=pool,
        decoding_reqs=None,
    )


def _times(call: Callable[[], object], rounds: int, share: int) -> dict[str, float]:
    """CPU time of this thread for a call, divided by `share`, in microseconds."""
    samples: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(samples) <= rounds or time.perf_counter() < end:
        before = time.thread_time()
        for _ in range(CALLS):
            call()
        samples.append(1e6 * (time.thread_time() - before) / CALLS / share)
    tenths = statistics.quantiles(samples[1:], n=10, method="inclusive")
    values = (statistics.median(samples[1:]), tenths[0], tenths[-1])
    return dict(zip(COLUMNS[-3:], (round(value, 3) for value in values), strict=True))


@contextlib.contextmanager
def unified_server() -> Iterator[None]:
    """Make the product see a server that both prefills and decodes."""
    serving = SimpleNamespace(disaggregation_mode="null")

    def get_disagg() -> Any:
        return serving

    with mock.patch("sglang.srt.runtime_context.get_disagg", get_disagg):
        yield


def measure(device: torch.device, rounds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Time what the host does for requests that start, and for batches without the penalty.

    Args:
        device: where the windows are.
        rounds: the fewest samples of each time.
        quick: few and small cases.

    Yields:
        One dict of COLUMNS a case; the time of a prefill is for each of its requests.
    """
    with unified_server():
        yield from _prefills(device, rounds, quick)
        yield from _resumptions(device, rounds)
        yield from _idle_batches(device, rounds, quick)


def _prefills(device: torch.device, rounds: int, quick: bool) -> Iterator[dict[str, Any]]:
    rows = 64 if quick else POOLS[0]
    generator = torch.Generator().manual_seed(0)
    spread = torch.randperm(VOCAB, generator=generator)
    for window in WINDOWS[:2] if quick else WINDOWS:
        for history in HISTORIES if window else ["text"]:
            tokens = HISTORIES[history](1, window + 100, spread, generator)[0].tolist()
            for requests in BATCHES[:2] if quick else BATCHES:
                pool = pool_of(rows + 1, max(window, DEFAULT_MAX_WINDOW_SIZE), device)
                batch = batch_of(pool, range(1, requests + 1), tokens, window)
                times = _times(functools.partial(start, batch), rounds, requests)
                yield (
                    dict(zip(COLUMNS, (PREFILL, requests, window, history, rows), strict=False))
                    | times
                )


def _resumptions(device: torch.device, rounds: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    spread = torch.randperm(VOCAB, generator=generator)
    for history, make in HISTORIES.items():
        tokens = make(1, OUTPUTS, spread, generator)[0].tolist()
        pool = pool_of(2, DEFAULT_MAX_WINDOW_SIZE, device)
        batch = batch_of(pool, range(1, 2), tokens, 512, ONSET)
        times = _times(functools.partial(start, batch), rounds, 1)
        yield dict(zip(COLUMNS, (RESUMED, 1, OUTPUTS, history, 2), strict=False)) | times


def start(batch: Any) -> None:
    """Plan the prefill of a batch and fill the windows of its requests."""
    forward_batch: Any = SimpleNamespace()
    sampling.plan_step(batch, RUNNER, forward_batch)
    batch.req_to_token_pool.lz_penalizer.write_windows(forward_batch.lz_step.windows)


def _idle_batches(device: torch.device, rounds: int, quick: bool) -> Iterator[dict[str, Any]]:
    params = SimpleNamespace(lz_params=None, max_new_tokens=64, **NO_OTHERS)
    no_penalty = SimpleNamespace(sampling_params=params)
    logits = torch.empty(0)
    for rows in (DECODING,) if quick else POOLS:
        pool = pool_of(rows + 2, 16, device)
        decode = batch_of(pool, range(2, DECODING + 2), None, 0)
        prefill = batch_of(pool, range(2, DECODING + 2), [1], 0)
        prefill.reqs = [no_penalty] * DECODING

        def hooks(batch: Any) -> None:
            forward_batch: Any = SimpleNamespace()
            sampling.plan_step(batch, RUNNER, forward_batch)
            sampling.apply_step(logits, forward_batch)

        for held in (False, True):
            if held:
                start(batch_of(pool, range(1, 2), [1, 2, 1], 8))
            for what, batch in ((NO_PENALTY, decode), (PREFILL_NO_PENALTY, prefill)):
                times = _times(functools.partial(hooks, batch), rounds, 1)
                words = f"{what}, {'a window held elsewhere' if held else 'no window held'}"
                yield dict(zip(COLUMNS, (words, DECODING, None, None, rows), strict=False)) | times
