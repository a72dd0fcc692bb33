"""Driving upstream's model runner in this process, step by step, without a server."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lz_penalty.fields.histories import UPSTREAM, HistoryParams
from lz_penalty.fields.lz import LARGEST_MAX_WINDOW_SIZE, LZParams
from oracle import delta_bits

LZ = {
    "lz_penalty": 0.3,
    "lz_window_size": 24,
    "lz_buffer_size": 8,
    "lz_include_prompt": True,
    "lz_cost": "marginal",
}
TOLERANCE = 1e-4


@dataclass
class Runner:
    """Runs batches, and remembers the logits before and after the LZ penalty of each."""

    bench: Any
    seen: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def extend(self, reqs: list[Any]) -> tuple[list[int], Any]:
        tokens, _, batch = self.bench.extend(reqs)
        return tokens.tolist(), batch

    def decode(self, tokens: list[int], batch: Any) -> list[int]:
        following, _ = self.bench.decode(torch.tensor(tokens), batch)
        return following.tolist()

    def assert_exact(self, histories: list[list[int]]) -> None:
        """The newest batch got what the oracle says of each row's history, with `LZ`."""
        before, after = self.seen[-1]
        for old, new, history in zip(before, after, histories, strict=True):
            expected = change(history, LZ, len(old))
            assert np.abs(expected).max() > 1
            assert_changed(old, new, expected)


def change(history: list[int], lz: dict[str, Any], vocab: int) -> np.ndarray:
    """The oracle's change of the logits after a history, float64 [V]."""
    bits = delta_bits(history, vocab, lz["lz_window_size"], lz["lz_buffer_size"], lz["lz_cost"])
    return lz["lz_penalty"] * (np.array(bits) - np.log2(vocab))


def assert_changed(before: torch.Tensor, after: torch.Tensor, expected: np.ndarray) -> None:
    """A row of logits changed as expected."""
    np.testing.assert_allclose((after - before).numpy(), expected, atol=TOLERANCE)


def make_request(prompt: list[int], outputs: Sequence[int] = (), **params: Any) -> Any:
    """One request as the scheduler holds it, ready for prefill."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    lz = LZParams.parse(LZ | params, LARGEST_MAX_WINDOW_SIZE)
    own = HistoryParams.parse(params | {"dry_sequence_breakers": []})
    sampling = SamplingParams(
        temperature=0,
        max_new_tokens=64,
        lz_params=lz if lz.penalty else None,
        history_params=own,
        **{name: params[name] for name in UPSTREAM if name in params},
    )
    sampling.normalize(None)
    req = Req(
        rid=str(id(sampling)),
        origin_input_text="",
        origin_input_ids=array("q", prompt),
        sampling_params=sampling,
    )
    req.output_ids = array("q", outputs)
    req.full_untruncated_fill_ids = req.origin_input_ids + req.output_ids
    req.extend_end = len(req.full_untruncated_fill_ids)
    req.logprob_start_len = -1
    return req
