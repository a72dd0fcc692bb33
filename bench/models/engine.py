"""Decoding in this process: the product's penalties, on a model in plain torch."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.models.decoder import Decoder
from lz_penalty.breakers import tables_for
from lz_penalty.fields.histories import COUNTS, HistoryParams
from lz_penalty.fields.lz import FIELDS as LZ_FIELDS
from lz_penalty.fields.lz import LZParams
from lz_penalty.history import HistoryRoom
from lz_penalty.history_penalizer import RowHistory
from lz_penalty.numbers import number_tokens
from lz_penalty.penalizer import Penalizer, RowStart, StepPlan
from lz_penalty.window import RowWindow


@dataclass(slots=True)
class Request:
    """One output to sample.

    Attributes:
        key: anything that the caller knows it by.
        prompt: its token ids.
        penalty: request fields, checked.
        temperature: 0 takes the likeliest token.
        seed: the same seed draws the same uniform number at the same position.
        output: its tokens so far; may begin with tokens that are known.
    """

    key: Any
    prompt: Sequence[int]
    penalty: Mapping[str, Any]
    temperature: float
    seed: int
    output: list[int] = field(default_factory=list)


class Engine:
    """Runs requests in the slots of a decoder, each until it ends.

    Attributes:
        numbers: 1 for each token that is a number, uint8 [V].
    """

    def __init__(
        self, decoder: Decoder, tokenizer: Any, ends: Sequence[int], *, max_tokens: int, window: int
    ) -> None:
        """Reserve the state of the penalties.

        Args:
            decoder: its slots are how many requests run at once.
            tokenizer: of the model, for DRY's breakers.
            ends: the tokens that end an output.
            max_tokens: of an output.
            window: the largest `lz_window_size` of any request.
        """
        self._decoder, self._tokenizer, self._ends = decoder, tokenizer, frozenset(ends)
        self._max_tokens = max_tokens
        slots = decoder.slots
        self._generations = torch.zeros(slots, dtype=torch.int64)
        self._running: dict[int, Request] = {}
        room = HistoryRoom(decoder.vocab_size, words=2**26, nodes=0, logits=slots)
        self._penalizer = Penalizer(
            self._generations, window, "cpu", room, live_rows=lambda: self._running
        )
        self.numbers = number_tokens(tokenizer, decoder.vocab_size)
        self._penalizer.state.set_numbers(self.numbers)
        self._window = window
        self._uniforms: dict[int, np.random.Generator] = {}

    def run(self, requests: Iterator[Request]) -> Iterator[tuple[Request, str]]:
        """Run requests; yields each as it ends, with `stop` or `length`.

        Args:
            requests: taken as slots become free.
        """
        free = list(range(len(self._generations)))
        while True:
            while free and (request := next(requests, None)) is not None:
                slot = free.pop()
                if finish := self._start(slot, request):
                    free.append(slot)
                    yield request, finish
            if not self._running:
                return
            slots = list(self._running)
            for slot, finish in self._step(slots):
                free.append(slot)
                yield self._running.pop(slot), finish

    def first_change(self, request: Request, output: Sequence[int]) -> int:
        """How many tokens of an output the request's penalty leaves alone.

        Args:
            request: has an empty output.
            output: sampled without a penalty from the same prompt, temperature and seed.
        """
        vocab_size = self._decoder.vocab_size
        room = HistoryRoom(vocab_size, words=1, lists=0)
        penalizer = Penalizer(torch.zeros(1, dtype=torch.int64), self._window, "cpu", room)
        penalizer.state.set_numbers(self.numbers)
        rows, zero = torch.tensor([0]), torch.zeros(1, vocab_size)
        plan = self._plan(penalizer, rows, request)
        for t in range(len(output)):
            if t:
                plan = penalizer.plan_again(rows, 1, 0) or penalizer.plan(rows, 1, {})
            length = torch.tensor([len(request.prompt) + t])
            newest = torch.tensor([output[t - 1] if t else request.prompt[-1]])
            _apply(plan, zero, rows, length, newest)
            if zero.any():
                return t
        return len(output)

    def _start(self, slot: int, request: Request) -> str:
        self._generations[slot] += 1
        self._uniforms[slot] = np.random.default_rng(request.seed)
        self._uniforms[slot].random(len(request.output))
        ids = [*request.prompt, *request.output]
        logits = self._decoder.prefill(slot, ids)
        rows = torch.tensor([slot])
        plan = self._plan(self._penalizer, rows, request)
        _apply(plan, logits, rows, torch.tensor([len(ids)]), torch.tensor(ids[-1:]))
        self._running[slot] = request
        finish = self._take(slot, logits[0])
        if finish:
            del self._running[slot]
        return finish

    def _step(self, slots: list[int]) -> list[tuple[int, str]]:
        running = [self._running[slot] for slot in slots]
        rows = torch.tensor(slots)
        newest = torch.tensor([request.output[-1] for request in running])
        lengths = torch.tensor([len(r.prompt) + len(r.output) for r in running])
        logits = self._decoder.step(rows, newest, lengths)
        plan = self._penalizer.plan(rows, len(slots), {})
        _apply(plan, logits, rows, lengths, newest)
        finished = ((s, self._take(s, row)) for s, row in zip(slots, logits, strict=True))
        return [(slot, finish) for slot, finish in finished if finish]

    def _take(self, slot: int, logits: Tensor) -> str:
        """Sample a token for a slot; returns why its output ends, or nothing."""
        request = self._running[slot]
        if request.temperature == 0:
            token = int(logits.argmax())
        else:
            shares = torch.softmax(logits / request.temperature, -1).double().cumsum(0)
            drawn = self._uniforms[slot].random() * float(shares[-1])
            token = int(torch.searchsorted(shares, drawn, right=True))
        request.output.append(token)
        if token in self._ends:
            return "stop"
        return "length" if len(request.output) >= self._max_tokens else ""

    def _plan(self, penalizer: Penalizer, rows: Tensor, request: Request) -> StepPlan | None:
        """The plan of the first step of a request, alone in its batch."""
        window, history = None, None
        prompt, output, penalty = request.prompt, request.output, request.penalty
        if penalty.get("lz_penalty"):
            own = {name: value for name, value in penalty.items() if name in LZ_FIELDS}
            lz = LZParams.parse(own, self._window)
            length = len(prompt) + len(output)
            if lz.include_prompt:
                window = RowWindow(array("q", [*prompt, *output]), len(prompt), length, 0, lz)
            else:
                window = RowWindow(array("q", output), 0, length, len(prompt), lz)
        rest = {name: value for name, value in penalty.items() if name not in LZ_FIELDS}
        counts = {name: rest.pop(name) for name in COUNTS if name in rest}
        if rest or counts:
            params = HistoryParams.parse(rest)
            tables = None
            if params.has_dry and params.dry_sequence_breakers:
                breakers, size = params.dry_sequence_breakers, self._decoder.vocab_size

                def tables() -> Any:
                    return tables_for(self._tokenizer, size, breakers)

            history = RowHistory(
                [*prompt, *output],
                len(prompt),
                len(prompt) + self._max_tokens,
                counts,
                params,
                tables=tables,
            )
        return penalizer.plan(rows, 1, {0: RowStart(window, history)}, prefilled=1)


def _apply(
    plan: StepPlan | None, logits: Tensor, rows: Tensor, lengths: Tensor, newest: Tensor
) -> None:
    if plan is not None:
        plan.penalizer.apply(plan, logits, request_rows=rows, seq_lens=lengths, input_ids=newest)
