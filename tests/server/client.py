"""Requests to the server and what comes back, with full-vocabulary logprobs."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from bench.http_client import HTTP, TIMEOUT_SECONDS
from oracle import Penalties
from server.launch import Server, vocab_size

Json = dict[str, Any]
Rows = npt.NDArray[np.float64]
STREAM_TRIES = 5
MOST_LOGPROBS = 1 << 20  # of one request, all its positions together (docs/MODES.md)


@dataclass(frozen=True)
class Lz:
    """The penalty's parameters of one request, with the documented defaults."""

    penalty: float = 0.0
    window: int = 512
    buffer: int = 32
    include_prompt: bool = False
    cost: str = "marginal"
    onset: int = 0

    def fields(self) -> Json:
        """The request fields, every one spelled out; none at all without a penalty."""
        if self.penalty == 0:
            return {}
        return {
            "lz_penalty": self.penalty,
            "lz_window_size": self.window,
            "lz_buffer_size": self.buffer,
            "lz_include_prompt": self.include_prompt,
            "lz_cost": self.cost,
            "lz_onset": self.onset,
        }


OFF = Lz()


def penalty_fields(penalties: Penalties, breakers: Sequence[str] = ()) -> Json:
    """The request fields of the other penalties, but those at their defaults.

    Args:
        penalties: `stops` without the tokens that stop every request; `breakers` is not read.
        breakers: the texts of DRY's sequence breakers.
    """
    defaults = vars(Penalties())
    fields = {
        name: value
        for name, value in vars(penalties).items()
        if value != defaults[name] and name not in ("stops", "breakers")
    }
    # A modifier needs its main field, on or off.
    for main, prefix in (("dry_multiplier", "dry_"), ("no_repeat_ngram_size", "no_repeat_")):
        if any(name.startswith(prefix) for name in fields):
            fields[main] = vars(penalties)[main]
    if "penalty_last_n" in fields:
        fields["repetition_penalty"] = penalties.repetition_penalty
    if penalties.stops:
        fields["stop_token_ids"] = list(penalties.stops)
    if penalties.dry_multiplier:
        fields["dry_sequence_breakers"] = list(breakers)
    return fields


@dataclass(frozen=True)
class Sample:
    """The tokens that one request sampled."""

    prompt: list[int]  # ids that the server says it prefilled
    outputs: list[int]  # ids sampled, oldest first
    rows: Rows  # float64 [len(outputs), V], the returned logprobs of every token at every position
    meta: Json  # the response's meta_info


def post(server: Server, path: str, body: Json) -> httpx.Response:
    """POST body as JSON; the status is the caller's to judge."""
    return HTTP.post(f"{server.url}{path}", json=body)


def streaming(server: Server, body: Json) -> AbstractContextManager[httpx.Response]:
    """POST body as JSON to /generate; the answer is read in the block, and dropped at its end."""
    return HTTP.stream("POST", f"{server.url}/generate", json=body | {"stream": True})


def post_ok(server: Server, path: str, body: Json) -> Any:
    """POST body as JSON and return the decoded answer of a 200.

    Raises:
        AssertionError: any other status.
    """
    answer = post(server, path, body)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
    return answer.json()


def answers(server: Server, bodies: Sequence[Json]) -> list[Json]:
    """What /generate answers to each body; all are sent at once."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: post_ok(server, "/generate", body), bodies))


def refusal(server: Server, path: str, body: Json) -> str:
    """The text of the HTTP 400 that a request gets.

    Raises:
        AssertionError: any other status.
    """
    answer = post(server, path, body)
    assert answer.status_code == 400, f"{path} {body}: {answer.status_code} {answer.text[:500]}"
    return answer.text


def flush_cache(server: Server) -> None:
    """Forget all prefixes, once the server has no batch in flight any more.

    It may still compute a step ahead when it has answered its last request, and would refuse.
    """
    assert post(server, f"/flush_cache?timeout={TIMEOUT_SECONDS}", {}).is_success


def request_body(
    prompt: Sequence[int],
    new_tokens: int,
    lz: Lz = OFF,
    *,
    temperature: float = 0.0,
    **sampling: Any,
) -> Json:
    """A /generate body that asks for the whole vocabulary's logprobs at every sampled position.

    The flat form (base64 of float32) keeps every bit and is the cheapest that the server offers.
    """
    return {
        "input_ids": list(prompt),
        "sampling_params": {
            "max_new_tokens": new_tokens,
            "temperature": temperature,
            "ignore_eos": True,
            **lz.fields(),
            **sampling,
        },
        "return_logprob": True,
        "top_logprobs_num": vocab_size(),
        "return_flat_raw_output_top_logprobs": True,
        "return_flat_raw_top_logprobs_b64": True,
    }


def without_logprobs(body: Json) -> Json:
    """A body of /generate that asks for the outputs only."""
    return {name: body[name] for name in ("input_ids", "sampling_params")}


def flat_rows(meta: Json, side: str) -> Rows:
    """The flat top-logprob arrays of a response as float64 [positions, V]."""
    shape = meta[f"{side}_top_logprobs_shape"]
    values, ids = (
        np.frombuffer(base64.b64decode(meta[f"{side}_top_logprobs_{kind}_flat_b64"]), dtype)
        for kind, dtype in (("val", "<f4"), ("idx", "<i4"))
    )
    assert shape[1] == vocab_size(), f"the server returned {shape[1]} of {vocab_size()} logprobs"
    rows = np.full(shape, np.nan)
    np.put_along_axis(rows, ids.reshape(shape).astype(np.int64), values.reshape(shape), axis=1)
    assert not np.isnan(rows).any(), "some token's logprob is missing or NaN"
    return rows


def top_rows(meta: Json, side: str) -> Rows:
    """The top logprobs of a response as float64 [positions, V], flat or nested as they came."""
    if f"{side}_top_logprobs_shape" in meta:
        return flat_rows(meta, side)
    positions = [entries for entries in meta[f"{side}_top_logprobs"] if entries is not None]
    rows = np.full((len(positions), vocab_size()), np.nan)
    for row, entries in zip(rows, positions, strict=True):
        for logprob, token, _ in entries:
            row[token] = -np.inf if logprob is None else logprob  # JSON has no minus infinity
    assert not np.isnan(rows).any(), "some token's logprob is missing"
    return rows


def to_sample(prompt: Sequence[int], answer: Json) -> Sample:
    """The sample in an answer to `request_body`."""
    meta = answer["meta_info"]
    sample = Sample(list(prompt), list(answer["output_ids"]), top_rows(meta, "output"), meta)
    assert len(sample.rows) == len(sample.outputs)
    assert meta["prompt_tokens"] == len(prompt)
    reported = [entry[0] for entry in meta["output_token_logprobs"]]
    chosen = sample.rows[np.arange(len(sample.outputs)), sample.outputs]
    np.testing.assert_allclose(reported, chosen, rtol=0, atol=1e-6)
    return sample


def generate(
    server: Server, prompt: Sequence[int], new_tokens: int, *args: Any, **kw: Any
) -> Sample:
    """One request of `request_body`, answered."""
    answer = post_ok(server, "/generate", request_body(prompt, new_tokens, *args, **kw))
    return to_sample(prompt, answer)


def base_rows(server: Server, prompt: Sequence[int], outputs: Sequence[int]) -> Rows:
    """Logprobs without any penalty for every prefix of the outputs, by prefills of all of them.

    The server bounds the logprobs of one request, so long outputs take several.

    Returns:
        float64 [len(outputs), V]; row i is the distribution after prompt + outputs[:i].
    """
    tokens = [*prompt, *outputs]
    at_once = MOST_LOGPROBS // vocab_size() - 1
    parts = []
    for start in range(len(prompt) - 1, len(tokens) - 1, at_once):
        body = request_body(tokens[: start + at_once + 1], 1)
        body["logprob_start_len"] = start
        body["return_flat_raw_top_logprobs"] = True
        parts.append(top_rows(post_ok(server, "/generate", body)["meta_info"], "input"))
    rows = np.concatenate(parts)
    assert len(rows) == len(outputs)
    return rows


def events(answer: httpx.Response) -> list[Json]:
    """The JSON events of a stream, or the one JSON object of a whole answer."""
    lines = (line.removeprefix("data: ").strip() for line in answer.read().decode().split("\n"))
    return [json.loads(line) for line in lines if line.startswith("{")]


def stream_sample(server: Server, prompt: Sequence[int], new_tokens: int, lz: Lz) -> Sample:
    """A greedy streamed request; the server cannot send the flat form here, so keep it short.

    A server that is short of time sends as one event what has piled up, so that how many come says
    nothing; all in a single one would be no stream.
    """
    body = {
        "input_ids": list(prompt),
        "sampling_params": request_body(prompt, new_tokens, lz)["sampling_params"],
        "return_logprob": True,
        "top_logprobs_num": vocab_size(),
    }
    for _ in range(STREAM_TRIES):
        with streaming(server, body) as answer:
            assert answer.status_code == 200, answer.read()[:2000]
            *earlier, last = events(answer)
        if earlier:
            break
    assert earlier, "the server did not stream"
    for event in earlier:
        assert event["output_ids"] == last["output_ids"][: len(event["output_ids"])]
    return to_sample(prompt, last)
