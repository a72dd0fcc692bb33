"""Sampling from an OpenAI-compatible endpoint: its requests and answers, and what it supports."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from tqdm import tqdm

from bench.models.grid import Grid, Item, Key, Variant, request_seed
from bench.models.run_directory import Record

PATH = "/v1/chat/completions"
TIMEOUT_SECONDS = 3600.0
ATTEMPTS = 6
"""How often a request is sent that fails with a 5xx or without an answer."""
FIRST_PAUSE_SECONDS = 0.5
"""Before the second attempt; twice as long before each further one."""

# Values that a server which knows the field must refuse.
OUT_OF_RANGE: dict[str, object] = {
    "lz_penalty": -1,
    "lz_window_size": 0,
    "lz_buffer_size": 0,
    "lz_include_prompt": "neither",
    "lz_cost": "no such cost",
    "repetition_penalty": -1,
    "frequency_penalty": 99,
    "presence_penalty": 99,
    "dry_multiplier": -1,
    "no_repeat_ngram_size": -1,
}
NO_VALUE: dict[str, object] = {"no": "value"}  # for a field that we do not know
PROBE_TOKENS = 24
PROBE_PROMPTS = 4

OWN_FIELDS = {
    *("model", "messages", "n", "stream"),
    *("max_tokens", "temperature", "seed", "return_token_ids"),
}
"""Fields of a request that are the run's own to set."""


class EndpointError(Exception):
    """An error of an endpoint, in a sentence for the user."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible endpoint and what every request to it has.

    Attributes:
        base_url: its address, without "/v1".
        model: the model's name there.
        max_tokens: the most tokens of an answer.
        fields: further fields of every request.
        token_ids: whether it tells the token ids of an answer; without them the detector works on
            characters.
        headers: HTTP headers of every request.
    """

    base_url: str
    model: str
    max_tokens: int
    fields: dict[str, object]
    token_ids: bool = True
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    def body(
        self, prompt: str, temperature: float, seed: int, penalty: Mapping[str, object]
    ) -> dict[str, object]:
        """The request that asks for one answer."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.max_tokens,
            "temperature": temperature,
            "seed": seed,
            **({"return_token_ids": True} if self.token_ids else {}),
            **self.fields,
            **penalty,
        }

    async def post(self, client: httpx.AsyncClient, body: Mapping[str, object]) -> httpx.Response:
        """Send a request, again after a pause if it fails for no fault of its own.

        Raises:
            EndpointError: it failed `ATTEMPTS` times.
        """
        url = self.base_url + PATH
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                answer = await client.post(url, json=body, headers=self.headers)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code < 500 and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return answer
            problem = f"HTTP {answer.status_code}: {_message(answer)}"
        raise EndpointError(f"{url} failed {ATTEMPTS} times, the last time with {problem}")

    async def answer(self, client: httpx.AsyncClient, body: Mapping[str, object]) -> dict[str, Any]:
        """Return the fields of a sample: text, token_ids, completion_tokens, finish_reason.

        Raises:
            EndpointError: the endpoint refused the request, or answered something else.
        """
        found = await self.post(client, body)
        if found.status_code != httpx.codes.OK:
            raise EndpointError(
                f"{self.base_url} refused a request with HTTP {found.status_code}: "
                f"{_message(found)}"
            )
        try:
            answer = found.json()
            (choice,) = answer["choices"]
            text = choice["message"]["content"] or ""
            # A server that splits off the chain of thought: there are the loops.
            if thought := choice["message"].get("reasoning_content"):
                text = f"{thought}</think>{text}"
            # SGLang's name, then vLLM's.
            ids = choice.get("response_token_ids") or choice.get("token_ids")
            return {
                "text": text,
                "token_ids": ids,
                "completion_tokens": answer["usage"]["completion_tokens"],
                "finish_reason": choice["finish_reason"],
            }
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EndpointError(
                f"{self.base_url} answered something else than OpenAI's API does "
                f"({type(error).__name__}: {error}): {found.text[:500]}"
            ) from None


def discover(base_url: str, headers: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """The names of an endpoint's models, and what SGLang's /server_info says, {} elsewhere.

    Raises:
        EndpointError: nothing answers there.
    """
    try:
        with httpx.Client(timeout=60.0, headers=dict(headers)) as client:
            models = client.get(f"{base_url}/v1/models")
            models.raise_for_status()
            names = [model["id"] for model in models.json()["data"]]
            info = client.get(f"{base_url}/server_info")
            return names, info.json() if info.status_code == httpx.codes.OK else {}
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise EndpointError(f"{base_url}/v1/models does not answer: {error}") from None


async def probe(
    endpoint: Endpoint, items: Sequence[Item], variants: Sequence[Variant]
) -> tuple[Endpoint, bool | None]:
    """Find out what an endpoint really does with the fields of a run.

    Returns:
        the endpoint, with `token_ids` as it is there, and whether it honours seeds: None if no
        seed changes any output of the model.

    Raises:
        EndpointError: it accepts a value that no server which knows the field would, so it ignores
            the field.
    """
    async with httpx.AsyncClient(timeout=600.0) as client:
        short = dataclasses.replace(endpoint, max_tokens=min(PROBE_TOKENS, endpoint.max_tokens))
        if not await _returns_token_ids(short, client, items[0].prompt):
            endpoint = dataclasses.replace(endpoint, token_ids=False)
            short = dataclasses.replace(short, token_ids=False)
            await short.answer(client, short.body(items[0].prompt, 0.0, 0, {}))
        for name in dict.fromkeys(name for variant in variants for name in variant.fields):
            await _require_known(short, client, items[0].prompt, name)
        prompts = [item.prompt for item in items[:PROBE_PROMPTS]]
        return endpoint, await _honours_seeds(short, client, prompts)


async def _returns_token_ids(endpoint: Endpoint, client: httpx.AsyncClient, prompt: str) -> bool:
    try:
        answer = await endpoint.answer(client, endpoint.body(prompt, 0.0, 0, {}))
    except EndpointError:
        return False
    return answer["token_ids"] is not None


async def _require_known(
    endpoint: Endpoint, client: httpx.AsyncClient, prompt: str, name: str
) -> None:
    value = OUT_OF_RANGE.get(name, NO_VALUE)
    answer = await endpoint.post(client, endpoint.body(prompt, 0.0, 0, {name: value}))
    if answer.status_code == httpx.codes.OK:
        raise EndpointError(
            f"{endpoint.base_url} ignores {name}: it accepted a request with {name}="
            f"{json.dumps(value)}. Its outputs would show nothing of {name}; a router in front of "
            "the server may drop the field."
        )


async def _honours_seeds(
    endpoint: Endpoint, client: httpx.AsyncClient, prompts: Sequence[str]
) -> bool | None:
    repeats, differs = True, False
    for prompt in prompts:
        texts = [
            (await endpoint.answer(client, endpoint.body(prompt, 1.0, seed, {})))["text"]
            for seed in (1, 1, 2, 3)
        ]
        repeats &= texts[0] == texts[1]
        differs |= len(set(texts[1:])) > 1
    return repeats if differs or not repeats else None


async def sample(
    endpoint: Endpoint, items: Sequence[Item], grid: Grid, kept: Record, concurrency: int
) -> None:
    """Ask for what is missing of a run, so many requests at a time.

    SIGINT and SIGTERM cancel it.

    Raises:
        EndpointError: the endpoint refuses a request, or fails again and again.
    """
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
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, limits=limits) as client:
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


def _message(answer: httpx.Response) -> str:
    """The error message of an endpoint, in one line."""
    try:
        found = answer.json()
        found = found.get("error", found)
        return str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, LookupError, AttributeError):
        return " ".join(answer.text.split())[:500] or answer.reason_phrase
