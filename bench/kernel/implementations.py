"""The ways to adjust logits that the benchmark compares."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from bench.kernel.inputs import Inputs
from lz_penalty.reference import steps as reference
from lz_penalty.window import StepInputs

FREQUENCY_PENALTY = 0.5
REPETITION_PENALTY = 1.2


class Implementation:
    """One way to adjust the logits of a batch.

    Attributes:
        inputs: what it is given.
        bytes: what a call must move at least, in bytes; None where that is not counted.
        capturable: whether a CUDA graph can hold a call.
    """

    def __init__(self, inputs: Inputs, size: int | None, capturable: bool = True) -> None:
        self.inputs, self.bytes, self.capturable = inputs, size, capturable

    def call(self, k: int) -> None:
        """Append the newest tokens of set `k` and adjust its logits: what is timed."""
        raise NotImplementedError


class Step(Implementation):
    """A decode step of the LZ penalty by the kernels of CUDA or a CPU, or by the reference."""

    def __init__(
        self,
        inputs: Inputs,
        kernels: ModuleType,
        size: int | None,
        onset: int = 0,
        *,
        memory: bool = False,
    ) -> None:
        super().__init__(inputs, size, capturable=kernels is not reference)
        self.kernels = kernels
        self.state = inputs.window_state(onset, memory=memory)

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        inputs = self.inputs
        self.kernels.step(
            self.state,
            inputs.logits[k],
            StepInputs(
                request_rows=inputs.request_rows[k],
                seq_lens=inputs.seq_lens,
                input_ids=inputs.newest[k],
                prefilled=0,
                offset=0,
            ),
            width=inputs.case.window,
        )


@dataclass
class _Batch:
    """The part of a batch that upstream's penalties read."""

    reqs: list[SimpleNamespace]
    device: str


def upstream_penalties(rows: int, vocab: int, device: torch.device) -> Any:
    """Upstream's frequency and repetition penalties of a batch."""
    from sglang.srt.sampling import penaltylib

    kinds = {penaltylib.BatchedFrequencyPenalizer, penaltylib.BatchedRepetitionPenalizer}
    params = SimpleNamespace(
        frequency_penalty=FREQUENCY_PENALTY, repetition_penalty=REPETITION_PENALTY
    )
    batch = _Batch([SimpleNamespace(sampling_params=params)] * rows, device.type)
    return penaltylib.BatchedPenalizerOrchestrator(vocab, batch, kinds)


class Upstream(Implementation):
    """Upstream's frequency and repetition penalties, as a server with overlap runs them."""

    def __init__(self, inputs: Inputs) -> None:
        from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties

        case = inputs.case
        # Additive: zeroed, lowered by what was counted (two read, one written), read. Factors:
        # copied (one read, one written), read. Logits: read and written by each of the two.
        each = 12 * torch.float32.itemsize
        super().__init__(inputs, size=each * case.rows * case.vocab)
        self.scale = apply_scaling_penalties
        self.penalties: dict[int, Any] = {}

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        if k not in self.penalties:
            case = self.inputs.case
            self.penalties[k] = upstream_penalties(case.rows, case.vocab, self.inputs.device)
        logits, penalties = self.inputs.logits[k], self.penalties[k]
        penalties.cumulate_output_tokens(self.inputs.newest[k])
        additive = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
        penalties.accumulate_additive_penalties(additive)
        scaling = penalties.accumulate_scaling_penalties()
        logits.add_(additive)
        self.scale(logits, scaling)


class Copy(Implementation):
    """A copy within the device's memory: half of the bytes read, half written."""

    def __init__(self, inputs: Inputs, size: int) -> None:
        super().__init__(inputs, size)
        shape = (2, inputs.sets, size // 2)
        self.memory = torch.zeros(shape, dtype=torch.uint8, device=inputs.device)

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        self.memory[0, k].copy_(self.memory[1, k])
