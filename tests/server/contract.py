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
from typing import Any

import numpy as np

from oracle import (
    Penalties,
    delta_bits,
    has_memory,
    log_softmax,
    penalised,
    visible_history,
)
from server.client import (
    OFF,
    Lz,
    Rows,
    Sample,
    base_rows,
    generate,
    penalty_fields,
)
from server.launch import Server, model_path, vocab_size
from server.model import normalisers, sequences, stop_ids
from server.summary import SUMMARY, TOLERANCE

# log(softmax) in float32 runs out of exponent near -87 and returns minus infinity further down:
# there the check is only that the server is down there too.
DEEP = -80.0

NO_PENALTIES = Penalties()

Transform = Callable[[Rows, Sequence[int]], Rows]


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
    return np.array(delta_bits(history, *sizes, lz.cost, onset=lz.onset, memory=memory))


def change(prompt: Sequence[int], outputs: Sequence[int], lz: Lz) -> Rows:
    """The penalty's change of the logits after some outputs, by the oracle, float64 [V]."""
    if not lz.penalty:
        return np.zeros(vocab_size())
    history = visible_history(prompt, outputs, lz.include_prompt)
    memory = has_memory(prompt, outputs, lz.include_prompt, lz.window, lz.onset)
    return lz.penalty * (bits(history, lz, memory=memory) - math.log2(vocab_size()))


def deviations(
    sample: Sample,
    base: Rows,
    lz: Lz,
    *,
    temperature: float = 0.0,
    transform: Transform | None = None,
    logits_of: Callable[[Rows, Sequence[int]], Rows] | None = None,
) -> list[float]:
    """The deviation from the contract at every position of a sample.

    Args:
        sample: what the server returned.
        base: float64 [positions, V] of `base_rows`.
        lz: the request's parameters.
        temperature: the request's; 0 is greedy, whose logprobs are those of temperature 1.
        transform: what else acts on the logits after the penalty: called with the penalised row and
            the outputs before it, returns the transformed row.
        logits_of: in place of `lz` and `transform`: the logits that are sampled from, by the row
            without any penalty and the outputs before it.
    """
    found = []
    for i, row in enumerate(sample.rows):
        before = sample.outputs[:i]
        if logits_of is not None:
            logits = logits_of(base[i], before)
        else:
            logits = base[i] + change(sample.prompt, before, lz)
            if transform is not None:
                logits = transform(logits, before)
        expected = log_softmax(logits / (temperature or 1.0))
        found.append(row_deviation(row, expected))
        if temperature == 0:
            lost = float(expected.max() - expected[sample.outputs[i]])
            found[-1] = max(found[-1], lost)
    return found


def check(
    server: Server,
    sample: Sample,
    lz: Lz,
    mode: str,
    *,
    temperature: float = 0.0,
    transform: Transform | None = None,
    case: Case | None = None,
) -> float:
    """Hold a sample to the contract, record its deviation under a mode and return it.

    The arguments that are not listed are those of `deviations`.

    Args:
        case: whose penalties and bias act, in place of `lz` and `transform`.

    Raises:
        AssertionError: some position deviates by more than TOLERANCE.
    """
    base = base_rows(server, sample.prompt, sample.outputs)
    logits_of = None if case is None else case.logits_of(sample.outputs, server.model)
    found = deviations(
        sample, base, lz, temperature=temperature, transform=transform, logits_of=logits_of
    )
    SUMMARY.record(mode, found)
    worst = max(found)
    wrong = [i for i, deviation in enumerate(found) if not deviation <= TOLERANCE]
    assert not wrong, (
        f"{mode}: {len(wrong)} of {len(found)} positions deviate, the first at {wrong[0]} by "
        f"{found[wrong[0]]:.3g} (largest {worst:.3g}), {lz}, temperature {temperature}, "
        f"{case and case.penalties}, prompt {sample.prompt}, outputs {sample.outputs}"
    )
    return worst


@dataclass(frozen=True)
class Case:
    """One request of a batch to check.

    Attributes:
        prompt: ids.
        new_tokens: how many to sample.
        lz: the penalty's parameters.
        temperature: 0 is greedy.
        favoured: tokens that get a large logit_bias, so that even random sampling repeats itself.
        ignore_eos: go on behind an end-of-sequence token.
        penalties: the other penalties; of their `stops` only its own.
        breakers: the texts of DRY's sequence breakers.
    """

    prompt: list[int]
    new_tokens: int
    lz: Lz = OFF
    temperature: float = 0.0
    favoured: tuple[int, ...] = ()
    ignore_eos: bool = True
    penalties: Penalties = NO_PENALTIES
    breakers: tuple[str, ...] = ()

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling parameters beside the penalty's."""
        bias = {str(token): BIAS for token in self.favoured}
        return {
            "ignore_eos": self.ignore_eos,
            **({"logit_bias": bias} if bias else {}),
            **penalty_fields(self.penalties, self.breakers),
        }

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
        if self.penalties == NO_PENALTIES:
            return self.transform(logits, before)
        whole = self.whole_penalties()
        return self.transform(penalised(logits + normaliser, self.prompt, before, whole), before)

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

    def transform(self, logits: Rows, before: Sequence[int]) -> Rows:
        """The effect of logit_bias, from its own definition."""
        biased = logits.copy()
        biased[list(self.favoured)] += BIAS
        return biased

    def run(self, server: Server) -> Sample:
        """Send the request and wait for its sample."""
        return generate(
            server,
            self.prompt,
            self.new_tokens,
            self.lz,
            temperature=self.temperature,
            **self.sampling,
        )

    def check(self, server: Server, sample: Sample, mode: str) -> float:
        """Hold the sample to the contract."""
        if self.penalties != NO_PENALTIES:
            mode += ", penalties"
        return check(
            server,
            sample,
            self.lz,
            mode,
            temperature=self.temperature,
            case=self,
        )


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
