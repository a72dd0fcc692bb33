"""The LZ penalty for `generate` of Hugging Face's transformers, without a server.

    penalty = LZPenalty(tokenizer, penalty=0.15, onset=3)
    model.generate(**inputs, logits_processor=[penalty])

`generate` gives a processor all ids so far, but says neither that a generation begins nor where its
prompt ends. So a call *goes on* with a generation if each row has the prompt and what followed it
in the same row of the last call, all or only the beginning, and then one more token. Any other call
begins a generation, and all its ids are the prompt. Therefore:

- Assisted generation is exact: it goes back to where drafts failed. An assistant with another
  tokenizer must not be used, but it is only refused if its vocabulary has another size.
- A second `generate` on an output of the first, whole or cut off but otherwise as it was, goes on:
  what was sampled stays visible. With more than one token after it, it is a prompt. After `reset`,
  everything is a prompt.
- Rows that go on with other rows, or with only some of them, are refused, before any token depends
  on it. So beam search fails as soon as it moves a row. (Its scores are logprobs, which it adds up,
  and which the penalty does not keep normalised.) A `generate` on one output of several fails too.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessor

from lz_penalty.fields.lz import LARGEST_MAX_WINDOW_SIZE, PREFIX, LZParams
from lz_penalty.history import HistoryRoom
from lz_penalty.numbers import number_tokens
from lz_penalty.penalizer import Penalizer, RowStart, StepPlan
from lz_penalty.window import RowWindow


class LZPenalty(LogitsProcessor):  # type: ignore[misc]  # mypy does not read transformers
    """Lowers the scores of tokens that repeat what came before, as docs/SPEC.md defines it.

    One object serves any number of generations with one model, one after another.

    Attributes:
        lz: the arguments, checked.
    """

    supports_continuous_batching = False

    def __init__(self, tokenizer: Any, penalty: float, **fields: Any) -> None:
        """Check the arguments.

        Args:
            tokenizer: of the model. It tells which tokens are numbers, and which is the padding:
                with `include_prompt`, a row's leading pad tokens are invisible, even where the
                prompt itself begins with that token. None if no token is a number or padding.
            penalty: strength in nats per bit, 0 to 10.
            fields: the other attributes of `LZParams`: onset, window_size and so on.

        Raises:
            FieldError: a ValueError with the request field (such as `lz_onset`), value and range.
        """
        own = {PREFIX + name: value for name, value in {"penalty": penalty, **fields}.items()}
        self.lz = LZParams.parse(own, LARGEST_MAX_WINDOW_SIZE)
        self._tokenizer = tokenizer
        self._numbers: NDArray[np.uint8] | None = None
        self.reset()

    def reset(self) -> None:
        """Let the next call begin a generation, whatever its ids are."""
        self._last = torch.empty(0, 0, dtype=torch.int64)
        self._prompt = 0

    def __getstate__(self) -> dict[str, Any]:  # a copy begins with a new generation
        return {**vars(self), "_penalizer": None, "_last": torch.empty(0, 0, dtype=torch.int64)}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply the penalty to the scores of the next token.

        Args:
            input_ids: all tokens so far, integer [rows, tokens].
            scores: logits, floating [rows, V], on a CPU or an NVIDIA GPU; not changed.

        Returns:
            The lowered logits, of the same shape, dtype and device, computed in float32.

        Raises:
            ValueError: rows go on with others, as in beam search, or V is not that of other calls.
        """
        # Copies: `generate` may return the scores as they were, and a caller may write to its ids.
        ids = input_ids.to(scores.device, torch.int64, copy=True)
        lowered = scores.detach().to(torch.float32, copy=True).contiguous()
        # After an error, the next call begins a generation.
        last, self._last = self._last, self._last[:0]
        self._prompt = _prompt_of(ids, last, self._prompt)
        rows, length = ids.shape
        if self._prompt < length == last.shape[1] + 1:
            plan = self._penalizer.plan(torch.arange(rows), rows, {})
        else:
            plan = self._seed(ids, scores.shape[1])
        assert plan is not None, "every row has a window"
        with torch.cuda.device_of(lowered):  # type: ignore[no-untyped-call] # not always current
            self._penalizer.apply(
                plan,
                lowered,
                request_rows=torch.arange(rows, device=ids.device),
                seq_lens=torch.full((rows,), length, device=ids.device),
                input_ids=ids[:, -1:].contiguous().view(-1),
            )
        self._last = ids
        return lowered.to(scores.dtype)

    def _seed(self, ids: Tensor, vocab_size: int) -> StepPlan | None:
        """Plan a step that first gives each row its window anew, from all its tokens."""
        if self._numbers is None:
            self._numbers = number_tokens(self._tokenizer, vocab_size)
        if len(self._numbers) != vocab_size:
            raise ValueError(
                f"scores must have {len(self._numbers)} columns, as before, got {vocab_size}."
            )
        rows, room = len(ids), HistoryRoom(vocab_size, words=1, lists=0)
        generations = torch.zeros(rows, dtype=torch.int64)
        self._penalizer = Penalizer(generations, self.lz.window_size, ids.device, room)
        self._penalizer.state.set_numbers(self._numbers)
        pad = getattr(self._tokenizer, "pad_token_id", None)
        starts = {}
        for row, own in enumerate(ids.tolist()):
            first = self._prompt
            if self.lz.include_prompt:
                first = next((i for i in range(first) if own[i] != pad), first)
            visible = array("q", own[first:])
            window = RowWindow(visible, self._prompt - first, len(own), first, self.lz)
            starts[row] = RowStart(window)
        return self._penalizer.plan(torch.arange(rows), rows, starts, prefilled=rows)


def _prompt_of(ids: Tensor, last: Tensor, prompt: int) -> int:
    """How many tokens of a call are the prompt: all, if it begins a generation.

    Args:
        ids, last: of this call and the last one, int64 [rows, tokens].
        prompt: how many the last one had, padding included.
    """
    known = ids.shape[1] - 1
    if last.device != ids.device or known < prompt:
        return known + 1
    if torch.equal(ids[:, :known], last[:, :known]):
        return prompt
    if known == last.shape[1] and all((last == own).all(1).any() for own in ids[:, :known]):
        raise ValueError(
            "num_beams must be 1 with LZPenalty, got rows that go on with other rows of the last "
            "call. If this is no beam search, call reset() before it."
        )
    return known + 1
