"""The contract of docs/SPEC.md section 7, checked from outside.

For every sampled position: returned logprobs = log_softmax(u + alpha * Delta), with an onset as in
section 9, where u are the logits that the same server gives for the same prefix with
lz_penalty = 0. u comes from one prefill of prompt and outputs (no penalty field in it), Delta from
tests/oracle.py.

The other penalties change u + alpha * Delta further, by the oracle's definitions. One of them
depends on the sign of logits, of which the server's logprobs are known up to a constant: that comes
from the model itself (`normalisers`).

TOLERANCE. Both sides are float32 on the server, and u is computed by prefill where the sampled row
may come from decode, another batch width or another chunk: with no penalty at all these differ by
up to 2e-5 nats here (`test_noise_without_a_penalty` measures it and holds it below half of the
tolerance; every mixed batch measures it again in its requests without a penalty). A single token
seen late or a window wrong by one moves some logprob by 1e-2 nats or more at the strengths used
here (`test_the_check_detects_small_errors`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from oracle import Penalties, delta_bits, has_memory, log_softmax, penalised, visible_history
from server.client import (
    OFF,
    Json,
    Lz,
    Rows,
    Sample,
    base_rows,
    penalty_fields,
    post_ok,
    request_body,
    to_sample,
)
from server.launch import Server, model_path, vocab_size
from server.model import normalisers, numbers, sequences, stop_ids
from server.summary import SUMMARY, TOLERANCE

# log(softmax) in float32 runs out of exponent near -87 and returns minus infinity further down:
# there the check is only that the server is down there too.
DEEP = -80.0

NO_PENALTIES = Penalties()


def row_deviation(observed: Rows, expected: Rows) -> float:
    """Largest absolute difference of two logprob rows, float64 [V] each.

    Tokens that either side puts below DEEP must be down there (or at minus infinity) on both.
    """
    deep = (observed < DEEP) | (expected < DEEP)
    if np.any(np.maximum(observed, expected)[deep] > DEEP + 1):
        return math.inf
    both = ~deep
    return float(np.abs(observed[both] - expected[both]).max(initial=0.0))


def bits(history: Sequence[int], lz: Lz, *, memory: bool = False) -> Rows:
    """Delta of every token after a history, by the oracle, float64 [V]."""
    sizes = (vocab_size(), lz.window, lz.buffer)
    waits = {"onset": lz.onset, "memory": memory, "numbers": numbers()}
    return np.array(delta_bits(history, *sizes, lz.cost, **waits))


def change(prompt: Sequence[int], outputs: Sequence[int], lz: Lz) -> Rows:
    """The penalty's change of the logits after some outputs, by the oracle, float64 [V]."""
    if not lz.penalty:
        return np.zeros(vocab_size())
    history = visible_history(prompt, outputs, lz.include_prompt)
    own = lz.include_prompt, lz.window, lz.onset
    memory = has_memory(prompt, outputs, *own, numbers=numbers())
    return lz.penalty * (bits(history, lz, memory=memory) - math.log2(vocab_size()))


def deviations(
    sample: Sample,
    base: Rows,
    lz: Lz,
    *,
    temperature: float = 0.0,
    logits_of: Callable[[Rows, Sequence[int]], Rows] | None = None,
) -> list[float]:
    """The deviation from the contract at every position of a sample.

    Args:
        sample: what the server returned.
        base: float64 [positions, V] of `base_rows`.
        lz: the request's parameters.
        temperature: the request's; 0 is greedy, whose logprobs are those of temperature 1.
        logits_of: in place of `lz`: the logits that are sampled from, by the row without any
            penalty and the outputs before it.
    """
    found = []
    for i, row in enumerate(sample.rows):
        before = sample.outputs[:i]
        if logits_of is not None:
            logits = logits_of(base[i], before)
        else:
            logits = base[i] + change(sample.prompt, before, lz)
        expected = log_softmax(logits / (temperature or 1.0))
        found.append(row_deviation(row, expected))
        if temperature == 0:
            lost = float(expected.max() - expected[sample.outputs[i]])
            found[-1] = max(found[-1], lost)
    return found


def check(server: Server, sample: Sample, lz: Lz, mode: str) -> float:
    """Hold a greedy sample to the contract; see `Case.check`."""
    return Case(sample.prompt, len(sample.outputs), lz).check(server, sample, mode)


class Constraint(Protocol):
    """A constraint of a request.

    Attributes:
        fields: the request's fields that ask for it.
    """

    fields: Json

    def transform(self, logits: Rows, before: Sequence[int]) -> Rows:
        """The row with minus infinity for what may not follow the outputs."""
        ...


@dataclass(frozen=True)
class Case:
    """One request of a batch to check."""

    prompt: list[int]  # ids
    new_tokens: int  # how many to sample
    lz: Lz = OFF  # the penalty's parameters
    temperature: float = 0.0  # 0 is greedy
    # Tokens that get a large logit_bias, so that even random sampling repeats itself
    favoured: tuple[int, ...] = ()
    ignore_eos: bool = True  # go on behind an end-of-sequence token
    penalties: Penalties = NO_PENALTIES  # the other penalties; of their `stops` only its own
    breakers: tuple[str, ...] = ()  # the texts of DRY's sequence breakers
    bias: tuple[tuple[int, float], ...] = ()  # `logit_bias` of other tokens
    constraint: Constraint | None = None  # what else decides which tokens may come

    @property
    def biases(self) -> dict[int, float]:
        """All of `logit_bias`."""
        return dict(self.bias) | dict.fromkeys(self.favoured, BIAS)

    @property
    def sampling(self) -> Json:
        """Sampling parameters beside the LZ penalty's."""
        bias = {str(token): amount for token, amount in self.biases.items()}
        return {
            "ignore_eos": self.ignore_eos,
            **({"logit_bias": bias} if bias else {}),
            **penalty_fields(self.penalties, self.breakers),
            **(self.constraint.fields if self.constraint else {}),
        }

    def body(self) -> Json:
        """The request to /generate for the logprobs of the whole vocabulary."""
        return request_body(
            self.prompt, self.new_tokens, self.lz, temperature=self.temperature, **self.sampling
        )

    def whole_penalties(self) -> Penalties:
        """Its penalties with what the server adds: the tokens that stop every request, and those
        that are sequence breakers."""
        stops = (*self.penalties.stops, *stop_ids())
        return replace(self.penalties, stops=stops, breakers=sequences(self.breakers))

    def changed(
        self, base: Rows, before: Sequence[int], normaliser: float, lz: Lz | None = None
    ) -> Rows:
        """The logits after some outputs, by the oracle.

        Args:
            base: float64 [V], the logprobs without any penalty.
            before: the outputs so far.
            normaliser: what is between these logprobs and the model's logits.
            lz: in place of its own LZ penalty.
        """
        logits = base + change(self.prompt, before, self.lz if lz is None else lz)
        if self.constraint is not None:
            logits = self.constraint.transform(logits, before)
        if self.penalties != NO_PENALTIES:
            logits = penalised(logits + normaliser, self.prompt, before, self.whole_penalties())
        return self.biased(logits)

    def normalisers(self, outputs: Sequence[int], model: Path | None = None) -> list[float]:
        """`normaliser` of `changed` after each number of outputs; 0 where it does not matter.

        Args:
            outputs: ids.
            model: the server's; None = `model_path`.
        """
        if self.penalties.repetition_penalty == 1:
            return [0.0] * len(outputs)
        return normalisers(model or model_path(), self.prompt, outputs)

    def logits_of(
        self, outputs: Sequence[int], model: Path | None = None
    ) -> Callable[[Rows, Sequence[int]], Rows]:
        """What `deviations` takes; arguments as `normalisers`."""
        constants = self.normalisers(outputs, model)
        return lambda base, before: self.changed(base, before, constants[len(before)])

    def biased(self, logits: Rows) -> Rows:
        """The effect of logit_bias, from its own definition."""
        biased = logits.copy()
        for token, amount in self.biases.items():
            biased[token] += amount
        return biased

    def run(self, server: Server) -> Sample:
        """Send the request and wait for its sample."""
        return to_sample(self.prompt, post_ok(server, "/generate", self.body()))

    def check(self, server: Server, sample: Sample, mode: str) -> float:
        """Hold the sample to the contract, record its deviation under a mode and return it.

        Raises:
            AssertionError: some position deviates by more than TOLERANCE.
        """
        if self.penalties != NO_PENALTIES:
            mode += ", penalties"
        found = deviations(
            sample,
            base_rows(server, sample.prompt, sample.outputs),
            self.lz,
            temperature=self.temperature,
            logits_of=self.logits_of(sample.outputs, server.model),
        )
        SUMMARY.record(mode, found)
        worst = max(found)
        wrong = [i for i, deviation in enumerate(found) if not deviation <= TOLERANCE]
        assert not wrong, (
            f"{mode}: {len(wrong)} of {len(found)} positions deviate, the first at {wrong[0]} by "
            f"{found[wrong[0]]:.3g} (largest {worst:.3g}), {self}, outputs {sample.outputs}"
        )
        return worst


BIAS = 25.0


def at_once(check: Callable[..., None], *arguments: Sequence[Any]) -> None:
    """Call a function for each of several requests, as `map` does, so that they share batches."""
    calls = list(zip(*arguments, strict=True))
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(lambda call: check(*call), calls))  # raises what a call raised


def run_together(server: Server, cases: Sequence[Case]) -> list[Sample]:
    """Send every case at once and wait for all."""
    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(lambda case: case.run(server), cases))


def check_together(server: Server, cases: Sequence[Case], mode: str) -> list[Sample]:
    """Run the cases in one batch, then hold each to the contract.

    Returns:
        The samples, for what else the caller wants to see in them.
    """
    samples = run_together(server, cases)
    for case, sample in zip(cases, samples, strict=True):
        case.check(server, sample, mode)
    return samples
