"""Hold what a server answered to the contract (docs/SPEC.md section 7), position by position.

The logits without a penalty are those of the model itself, run here; all else is the tests' oracle.
The oracle is asked for each position once, and for the memory of an onset at all of them together.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from oracle import log_softmax, memory_of_steps, visible_history
from server.client import OFF, Json, Rows, top_rows
from server.contract import NO_PENALTIES, bits, row_deviation
from server.launch import model_path, vocab_size
from server.model import logits, numbers
from server.summary import TOLERANCE
from soak.schedule import ANSWER, PROMPT, TOKENS, Request

IMPOSSIBLE = -80.0
"""Logprobs below it are not told apart from minus infinity; nothing there is ever sampled."""
TOKENS_SENT = re.compile(rb'"output_ids": ?(\[[0-9, ]*\])')
AT_ONCE = 64
"""Answers that wait to be checked; each may have some megabytes."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    configuration: str  # the server's name
    wave: str  # name of the wave
    how: str  # how the request was sent and ended
    request: Request  # what was asked
    body: Json  # what was sent
    content: bytes  # an answer's JSON, or the events of a stream as far as they came
    deltas: bool = False  # whether each event of the stream has its new tokens alone


@dataclass(frozen=True)
class Verdict:
    """The result of checking an answer."""

    configuration: str  # the server's name
    kinds: tuple[str, ...]  # what the positions were, each a heading of the table
    positions: int  # how many were checked by all logprobs of the vocabulary
    deviation: float  # the largest of all, nats
    tokens: int = 0  # how many greedy tokens were checked without them
    beyond: int = 0  # positions beyond the tolerance, or 1 if the answer itself was wrong
    # The request that reproduces it and what is wrong; None if nothing is
    failure: Json | None = None


@dataclass(frozen=True)
class Output:
    """The outputs of an answer: ids, logprobs if there are any, and what else was said."""

    tokens: list[int]
    rows: Rows | None
    meta: Json
    text: str


def outputs_of(answer: Answer) -> list[Output]:
    """Read what came back.

    Raises:
        ValueError: it cannot be read, or contradicts itself.
    """
    if answer.content.startswith((b"[", b"{")):
        found = json.loads(answer.content)
        return [_output(one) for one in (found if isinstance(found, list) else [found])]
    lines = [
        line[len(b"data: ") :]
        # The last line may have been cut off.
        for line in answer.content.split(b"\n\n")[:-1]
        if line.startswith(b"data: ") and line != b"data: [DONE]"
    ]
    if not lines:
        return []
    if answer.deltas:
        return [_output(_joined([_event(line) for line in lines]))]
    last = _event(lines[-1])
    for line in lines:  # which repeat megabytes of logprobs of which the last has all
        found = TOKENS_SENT.search(line)
        tokens = json.loads(found[1]) if found else []
        if last["output_ids"][: len(tokens)] != tokens:
            raise ValueError("an event has other tokens than a later one")
    return [_output(last)]


def _event(line: bytes) -> Json:
    event = json.loads(line)
    if "error" in event:
        raise ValueError(f"an error: {event['error']}")
    return event


def _joined(events: Sequence[Json]) -> Json:
    tokens = [token for event in events for token in event["output_ids"]]
    meta = dict(events[-1]["meta_info"])
    for name in ("output_top_logprobs", "output_token_logprobs"):
        meta[name] = []
        for event in events:
            entries = event["meta_info"].get(name) or []
            # The event of an abort has no new token, and the logprobs of the event before it.
            meta[name] += entries[max(len(entries) - len(event["output_ids"]), 0) :]
    return {"output_ids": tokens, "meta_info": meta}


def _output(answer: Json) -> Output:
    meta = answer["meta_info"]
    tokens = list(answer["output_ids"])
    rows = None
    if meta.get("output_top_logprobs_shape", [0])[0] or meta.get("output_top_logprobs"):
        rows = top_rows(meta, "output")
        if len(rows) != len(tokens):
            raise ValueError(f"{len(rows)} rows of logprobs of {len(tokens)} tokens")
        said = [entry[0] for entry in meta["output_token_logprobs"]][: len(tokens)]
        chosen = rows[np.arange(len(said)), tokens[: len(said)]]
        if not np.allclose(said, chosen, rtol=0, atol=1e-6):
            raise ValueError("a token's logprob is not that of its row")
    return Output(tokens, rows, meta, answer.get("text", ""))


def expected_rows(request: Request, tokens: Sequence[int]) -> Rows:
    """The logprobs that the contract asks for at every position, float64 [len(tokens), V]."""
    base = logits(model_path(), request.prompt, tokens)
    rows = np.empty_like(base)
    lz = request.lz
    seen = request.prompt, tokens, lz.include_prompt, lz.window
    memory = memory_of_steps(*seen, lz.onset if lz.penalty else 0, numbers=numbers())
    for i, row in enumerate(base):
        before = tokens[:i]
        if lz.penalty:
            history = visible_history(request.prompt, before, lz.include_prompt)
            saved = math.log2(vocab_size()) - bits(history, lz, memory=memory[i])
            row = row - lz.penalty * saved  # noqa: PLW2901
        # The model's own logits need no constant to have the right signs.
        changed = request.changed(row, before, 0.0, OFF)
        rows[i] = log_softmax(changed / (request.temperature or 1.0))
    return rows


def deviations(request: Request, tokens: Sequence[int], rows: Rows | None) -> list[float]:
    """The deviation at every position; without rows, how much less likely a greedy token is.

    Raises:
        KeyError: proper tokens, and something that no encoding goes on with.
    """
    expected = expected_rows(request, tokens)
    found = []
    for i, token in enumerate(tokens):
        off = 0.0 if rows is None else row_deviation(rows[i], expected[i])
        if request.temperature == 0:
            off = max(off, float(expected[i].max() - expected[i, token]))
        elif expected[i, token] < IMPOSSIBLE:
            off = math.inf
        found.append(off)
    return found


def kinds_of(answer: Answer, output: Output) -> tuple[str, ...]:
    """The headings under which an output's positions count."""
    request = answer.request
    finish = output.meta.get("finish_reason") or {}
    aborted = finish.get("type") == "abort"
    named = {
        "lz": request.lz.penalty > 0,
        "lz, onset": request.lz.penalty > 0 and request.lz.onset > 0,
        "other penalties": request.penalties != NO_PENALTIES,
        "logit_bias": bool(request.biases),
        "proper tokens": request.constraint is not None,
        "stop strings": bool(request.stop),
        "temperature": request.temperature > 0,
        "n > 1": request.count > 1,
        "retracted": output.meta.get("num_retractions", 0) > 0,
        "aborted": aborted,
        "cached prefix": output.meta.get("cached_tokens", 0) > 0,
    }
    own = () if answer.how == ANSWER else (answer.how,)
    return (*own, *(name for name, holds in named.items() if holds)) or ("no penalty",)


def check(answer: Answer) -> list[Verdict]:
    """Check every output of an answer."""
    try:
        found = outputs_of(answer)
    except (ValueError, KeyError, AssertionError) as error:
        return [_failed(answer, f"cannot be read: {error!r}")]
    verdicts = []
    for output in found:
        try:
            verdicts += _check_output(answer, output)
        except Exception:
            verdicts.append(_failed(answer, traceback.format_exc(limit=4), output.tokens))
    return verdicts


def _check_output(answer: Answer, output: Output) -> list[Verdict]:
    request, tokens = answer.request, output.tokens
    kinds = kinds_of(answer, output)
    finish = output.meta.get("finish_reason") or {}
    if finish.get("type") == "length" and len(tokens) != request.new_tokens:
        reason = f"{len(tokens)} of {request.new_tokens} tokens for reason `length`"
        return [_failed(answer, reason, tokens)]
    verdicts = []
    if output.rows is not None or answer.how == TOKENS:
        found = deviations(request, tokens, output.rows)
        verdicts.append(_verdict(answer, kinds, found, tokens))
    if answer.how == PROMPT and finish.get("type") != "abort":
        rows = top_rows(output.meta, "input")
        # The first token of a prompt has no logprobs.
        plain = replace(Request(request.prompt[:1], 0))
        expected = expected_rows(plain, request.prompt[1:])
        if len(rows) != len(expected):
            return [_failed(answer, f"{len(rows)} rows of logprobs of the prompt", tokens)]
        found = [row_deviation(row, e) for row, e in zip(rows, expected, strict=True)]
        verdicts.append(_verdict(answer, ("prompt tokens",), found, tokens))
    return verdicts


def _verdict(
    answer: Answer, kinds: tuple[str, ...], found: Sequence[float], tokens: Sequence[int]
) -> Verdict:
    largest = max(found, default=0.0)
    wrong = [i for i, off in enumerate(found) if not off <= TOLERANCE]
    failure = None
    if wrong:
        reason = f"{len(wrong)} of {len(found)} positions deviate, the first at {wrong[0]}"
        failure = _record(answer, f"{reason} by {found[wrong[0]]:.3g} nats", tokens)
    tokens_only = answer.how == TOKENS
    return Verdict(
        answer.configuration,
        kinds,
        0 if tokens_only else len(found),
        largest,
        len(found) if tokens_only else 0,
        len(wrong),
        failure,
    )


def _failed(answer: Answer, reason: str, tokens: Sequence[int] = ()) -> Verdict:
    failure = _record(answer, reason, tokens)
    return Verdict(answer.configuration, (answer.how,), 0, math.inf, 0, 1, failure)


def _record(answer: Answer, reason: str, tokens: Sequence[int]) -> Json:
    return {
        "reason": reason,
        "configuration": answer.configuration,
        "wave": answer.wave,
        "how": answer.how,
        "request": answer.body,
        "outputs": list(tokens),
    }


class Checker:
    """Checks answers in a process of its own, so that the oracle has a core beside the server.

    As a context manager it ends the process when the block is left.
    """

    def __init__(self) -> None:
        """Start the process."""
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, _begin)
        self._room = threading.Semaphore(AT_ONCE)
        self._found: deque[Future[list[Verdict]]] = deque()

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def put(self, answer: Answer) -> None:
        """Have an answer checked; blocks while too many wait."""
        self._room.acquire()
        found = self._pool.submit(check, answer)
        found.add_done_callback(lambda _: self._room.release())
        self._found.append(found)

    def take(self, *, wait: bool) -> list[Verdict]:
        """The verdicts that are there, or with `wait` all that are still to come.

        Raises:
            BrokenProcessPool: the process that checks has died.
        """
        verdicts: list[Verdict] = []
        while self._found and (wait or self._found[0].done()):
            verdicts += self._found.popleft().result()
        return verdicts


def _begin() -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """The parent may be killed, and then tells nobody to end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
