"""Sampling: ask the endpoint for what is missing of a run."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import httpx
from tqdm import tqdm

from bench.models.endpoint import Endpoint, EndpointError
from bench.models.grid import Grid, Key
from bench.models.items import Item
from bench.models.run_directory import Record


def request_seed(key: Key) -> int:
    """The seed that a request sends, 31 bits.

    The same under every variant, so that they differ by the penalty alone, and another for each
    item: servers draw the noise of a position from the seed only.
    """
    digest = hashlib.sha256(f"{key.seed} {key.item}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def sample(
    endpoint: Endpoint,
    items: Sequence[Item],
    grid: Grid,
    kept: Record,
    *,
    concurrency: int,
    timeout: float,
) -> None:
    """Sample what is missing of a run.

    Args:
        endpoint: where.
        items: all items of the run.
        grid: what each is sampled under.
        kept: the run's directory.
        concurrency: requests at a time.
        timeout: seconds that one request may take.

    Raises:
        EndpointError: the endpoint refuses a request, or fails again and again.
        KeyboardInterrupt: the user ended it by SIGINT or SIGTERM.
    """
    try:
        asyncio.run(_sample(endpoint, items, grid, kept, concurrency=concurrency, timeout=timeout))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _sample(
    endpoint: Endpoint,
    items: Sequence[Item],
    grid: Grid,
    kept: Record,
    *,
    concurrency: int,
    timeout: float,
) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    asked = {item.id: item for item in items}
    penalties = {variant.name: variant.fields for variant in grid.variants}
    keys = list(grid.keys(items))
    missing = [key for key in keys if key not in kept.done]
    finished: Counter[str] = Counter()

    async def work(keys: Iterator[Key]) -> None:
        for key in keys:
            item = asked[key.item]
            body = endpoint.body(
                item.prompt,
                key.temperature,
                request_seed(key),
                {**item.fields, **penalties[key.variant]},
            )
            began = time.monotonic()
            answer = await endpoint.answer(client, body)
            seconds = round(time.monotonic() - began, 3)
            kept.add(key, {**answer, "seconds": seconds})
            finished[str(answer["finish_reason"])] += 1
            bar.set_postfix(finished, refresh=False)
            bar.update()

    limits = httpx.Limits(max_connections=concurrency)
    with tqdm(total=len(keys), initial=len(kept.done), unit="sample", dynamic_ncols=True) as bar:
        async with httpx.AsyncClient(timeout=timeout, limits=limits) as client:
            # Not beside each other: where one request is greedy, SGLang (seen in 0.5.23) draws the
            # others' tokens by their rank instead of their id, which gives a seed other tokens.
            for greedy in (True, False):
                phase = iter([key for key in missing if (key.temperature == 0) is greedy])
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(concurrency):
                            group.create_task(work(phase))
                except ExceptionGroup as failures:
                    refusals, others = failures.split(EndpointError)
                    if refusals is None or others is not None:
                        raise
                    raise refusals.exceptions[0] from None
