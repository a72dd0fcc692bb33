"""Whatever values a request is admitted with, there is something to sample from at every position.

The whole chain of transforms on a CPU: all penalties, a grammar's mask, the bias, temperature,
softmax, and upstream's own sampling by top_k, top_p and min_p.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang.srt.layers.sampler import (
    sampling_from_probs_torch,
    top_k_top_p_min_p_sampling_from_probs_torch,
)
from sglang.srt.sampling.sampling_params import TOP_K_ALL, SamplingParams

from sglang_lz.http import admission
from sglang_lz.scheduler import sampling
from unit.test_penalizer import (
    MAX_WINDOW,
    VOCAB,
    Pool,
    Request,
    admitted,
    array,
    forward,
    plan,
    random_mask,
    request,
    reserved_pool,
    server,
)

__all__ = ["server"]  # a fixture that runs by itself

SMALL = (0.0, -0.0, 5e-324, 1e-45, 1e-38, 1e-30, 1e-7, 1e-6, 9e-7, 0.01, 0.5, 1.0, 1.5, 2.0)
LARGE = (10.0, 100.0, 1e6, 1e29, 1e30, 1e38, 3.5e38, 1e39, 1e308, float("inf"), float("nan"))
numbers = st.sampled_from([*SMALL, *LARGE]).flatmap(lambda x: st.sampled_from([x, -x]))
integers = st.sampled_from([0, 1, 2, 3, VOCAB, 40, 2**30, -1])
FIELDS = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "dry_multiplier", "dry_base"), numbers),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty"), numbers),
    "lz_penalty": numbers,
    **dict.fromkeys(("lz_window_size", "lz_onset", "top_k", "min_new_tokens"), integers),
    **dict.fromkeys(("no_repeat_ngram_size", "no_repeat_ngram_window"), integers),
    **dict.fromkeys(("dry_allowed_length", "dry_penalty_last_n", "penalty_last_n"), integers),
    "dry_sequence_breakers": st.sampled_from([[], ["c"]]),
    "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1).map(str), numbers),
    "stop_token_ids": st.just([0, 1, 2, 3]),
}
texts = st.lists(st.integers(0, 1), min_size=1, max_size=60) | st.sampled_from(
    [[1] * 300, [0, 1] * 150, list(range(VOCAB)) * 3]
)


def read(fields: dict[str, Any]) -> SamplingParams | None:
    """The sampling parameters of a request; None where it is refused."""
    try:
        params = SamplingParams(**admission.other_fields({**fields, "max_new_tokens": 64}))
        params.normalize(None)
        admission.admit(params, fields, is_encoder_decoder=False, has_input_embeds=False)
        params.verify(VOCAB)
    except ValueError:
        return None
    return params


@pytest.fixture
def pool(server: None, server_config: dict[str, Any]) -> Pool:
    """One for all examples: kernels are warmed up once."""
    server_config["lz_max_window_size"] = MAX_WINDOW  # as the pool
    return reserved_pool()


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fields=st.fixed_dictionaries({}, optional=FIELDS),
    text=texts,
    scale=st.sampled_from([0.0, 1.0, 1e4]),
    seed=st.integers(0, 2**20),
)
@pytest.mark.usefixtures("server_config")
def test_admitted_requests_can_be_sampled(
    pool: Pool, fields: dict[str, Any], text: list[int], scale: float, seed: int
) -> None:
    params = read(fields)
    if params is None:
        return
    rng = random.Random(seed)
    req = admitted(pool, Request(params, array("q", text)))
    forward_batch = plan(pool, "extend", [req], [])
    mask = random_mask(rng, 1)
    forward_batch.sampling_info.grammars = None if mask is None else [object()]
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (1, VOCAB))).float()
    sampling.apply_step(logits, forward_batch)
    if mask is not None:
        logits[mask] = -torch.inf
    sampling.forbid_step(logits, forward_batch)
    bias = torch.zeros(1, VOCAB)
    for token, value in (params.logit_bias or {}).items():
        bias[0, int(token)] = value
    logits += bias
    assert req.row is not None
    pool.free_slots.append(req.row)
    check(logits, params, mask)


def check(logits: torch.Tensor, params: SamplingParams, mask: torch.Tensor | None) -> None:
    """Hold a row of logits to what sampling needs, and sample from it."""
    forbidden = torch.zeros(1, VOCAB, dtype=torch.bool) if mask is None else mask
    assert torch.isfinite(logits.max())
    assert not logits.isnan().any()
    assert not forbidden[0, int(logits.argmax())]
    probs = (logits / torch.tensor([[params.temperature]])).softmax(-1)
    assert torch.isfinite(probs).all()
    assert float(probs.sum()) == pytest.approx(1, abs=1e-5)
    tensors = {
        "top_ks": torch.tensor([params.top_k], dtype=torch.int32),
        "top_ps": torch.tensor([params.top_p]),
        "min_ps": torch.tensor([params.min_p]),
    }
    sampled = top_k_top_p_min_p_sampling_from_probs_torch(
        probs.clone(), **tensors, need_min_p_sampling=params.min_p > 0, sampling_seed=None,
        positions=None, max_top_k=None if params.top_k == TOP_K_ALL else params.top_k,
    )  # fmt: skip
    for token in (sampled, sampling_from_probs_torch(probs.clone())):
        assert not forbidden[0, int(token)]


def test_dry_is_capped_as_documented() -> None:
    """And a bias as large is told from it."""
    pool = reserved_pool()
    text = [1] * 300
    req = admitted(pool, request(text, lz_penalty=0.0, dry_multiplier=100, dry_base=100))
    _, before, after = forward(pool, "extend", [req], [])
    assert before[0, 1].isneginf() or float(after[0, 1]) == pytest.approx(-1e29, rel=1e-6)
