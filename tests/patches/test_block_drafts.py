"""Blocks of drafts: what surrounds the verification that test_draft_trees.py drives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inprocess import LZ, make_request
from sglang_lz.scheduler.sampling import has_penalty

NODES, VOCAB, TRIALS = 3, 4, 20_000


def sampling_info(rows: int, min_p: float) -> Any:
    """Upstream's, at temperature 1, with that min_p for every row."""
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    return SamplingBatchInfo(
        temperatures=torch.ones(rows, 1),
        top_ps=torch.ones(rows),
        top_ks=torch.full((rows,), 1 << 30, dtype=torch.int32),
        min_ps=torch.full((rows,), min_p),
        is_all_greedy=False,
        is_any_greedy=False,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=min_p > 0,
        vocab_size=VOCAB,
    )


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("fields", [{}, {"lz_penalty": 0.5}, {"frequency_penalty": 0.5}])
def test_only_a_batch_without_a_penalty_takes_the_short_cut(
    fields: dict[str, float], greedy: bool
) -> None:
    """It leaves the logits on the ranks."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    reqs = [make_request([5, 6], **(LZ | {"lz_penalty": 0.0} | given)) for given in ({}, fields)]
    batch: Any = SimpleNamespace(reqs=reqs, has_grammar=False, return_logprob=False)
    assert has_penalty(batch) is bool(fields)
    can_skip = DFlashWorkerV2._can_skip_verify_logits
    info = sampling_info(2, 0.0)
    info.is_all_greedy, info.sampling_mask_batch_indices = greedy, None
    worker: Any = SimpleNamespace(_selector_sample=None)
    assert can_skip(worker, batch, info) == (greedy and not fields)


@pytest.mark.parametrize("min_p", [0.0, 0.1])
@pytest.mark.parametrize("fields", [{}, {"lz_penalty": 0.5}, {"frequency_penalty": 0.5}])
def test_drafts_with_a_penalty_or_min_p_are_accepted_outside_the_graph(
    fields: dict[str, float], min_p: float
) -> None:
    """DSPARK's graph samples by the temperature only."""
    from sglang.srt.speculative.dspark_components import dspark_verify
    from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2

    reqs = [make_request([5, 6], **(LZ | {"lz_penalty": 0.0} | given)) for given in ({}, fields)]
    batch: Any = SimpleNamespace(reqs=reqs, has_grammar=False)
    eligible = DSparkWorkerV2._sampling_graph_eligible
    info = sampling_info(2, min_p)
    worker: Any = SimpleNamespace(
        _sampling_accept_graph=SimpleNamespace(),
        _verify_planner=SimpleNamespace(mode_value="static"),
    )
    is_eligible = eligible(
        worker,
        batch=batch,
        proposal_folded=True,
        sampling_info=info,
        simulate_bonus_sampling_info=None,
    )
    assert is_eligible == (not fields and not min_p)
    assert dspark_verify._blockwise_rejection_applies(
        sampling_info=info, rejection_noise=SimpleNamespace(), block_verification=False
    ) == (not min_p)


def accepted_by_dflash(
    candidates: torch.Tensor, logits: torch.Tensor, drafts: torch.Tensor | None, min_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many tokens follow each row's first, and those (int64 [rows, NODES])."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    rows = len(candidates)
    ids = torch.arange(VOCAB).repeat(rows, NODES - 1, 1)
    drawn = None if drafts is None else (ids, drafts.repeat(rows, 1, 1))
    worker: Any = SimpleNamespace(
        _selector_sample=drawn,
        _draft_probs_buf=None,
        _block_verification=False,
        _tp_sync=SimpleNamespace(sync=lambda *_: None),
        block_size=NODES,
    )
    worker._selector_sampling_accept = DFlashWorkerV2._selector_sampling_accept.__get__(worker)
    _, commit_lens, _, out_tokens, _ = DFlashWorkerV2._accept_block(
        worker,
        candidates=candidates,
        next_token_logits=logits,
        sampling_info=sampling_info(rows, min_p),
        draft_input=SimpleNamespace(max_top_k=1 << 30, uniform_top_k_value=None),
        prefix_lens=torch.zeros(rows, dtype=torch.int64),
        bs=rows,
    )
    return commit_lens, out_tokens


def accepted_by_dspark(
    candidates: torch.Tensor, logits: torch.Tensor, drafts: torch.Tensor | None, min_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `accepted_by_dflash`."""
    from sglang.srt.speculative.dspark_components.dspark_draft import DraftBlockResult
    from sglang.srt.speculative.dspark_components.dspark_verify import accept_draft_tokens

    rows = len(candidates)
    draft_input: Any = SimpleNamespace(max_top_k=1 << 30, uniform_top_k_value=None)
    drawn = DraftBlockResult(
        draft_tokens=candidates[:, 1:].clone(),
        corrected_logits=None if drafts is None else drafts.log().repeat(rows, 1, 1),
        greedy_mask=torch.zeros(rows, dtype=torch.bool),
        temperatures=torch.ones(rows),
        greedy_draft=drafts is None,
    )
    counts, bonus, _ = accept_draft_tokens(
        candidates=candidates,
        target_logits=logits,
        draft_block=drawn,
        sampling_info=sampling_info(rows, min_p),
        draft_input=draft_input,
        gamma=NODES - 1,
        verify_num_draft_tokens=NODES,
    )
    tokens = torch.cat([candidates[:, 1:], torch.zeros(rows, 1, dtype=torch.int64)], 1)
    tokens[torch.arange(rows), counts.long()] = bonus
    return counts + 1, tokens


@pytest.mark.slow
@pytest.mark.parametrize("accepted", [accepted_by_dflash, accepted_by_dspark])
@pytest.mark.parametrize("sampled_drafts", [False, True], ids=["greedy drafts", "sampled drafts"])
@pytest.mark.parametrize(
    "min_p",
    [pytest.param(0.0, id="no min_p"), pytest.param(0.45, id="min_p", marks=pytest.mark.full)],
)
def test_blocks_are_accepted_as_their_logits_say(
    bench_runner: Any, min_p: float, sampled_drafts: bool, accepted: Callable[..., Any]
) -> None:
    """Every token has the target's distribution after min_p, also where a selector of DFLASH's
    drew the drafts, which needs weights that no demo has."""
    torch.manual_seed(0)
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.5, 0.15, 0.25], [0.7, 0.1, 0.1, 0.1]])
    drafts = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.25, 0.25, 0.5]])
    if sampled_drafts:
        drawn = torch.stack([q.multinomial(TRIALS, replacement=True) for q in drafts], 1)
    else:
        drawn = torch.tensor([1, 3]).expand(TRIALS, 2)
    commit_lens, out_tokens = accepted(
        torch.cat([torch.zeros(TRIALS, 1, dtype=torch.int64), drawn], 1),
        probs.log().repeat(TRIALS, 1),
        drafts if sampled_drafts else None,
        min_p,
    )
    assert set(commit_lens.tolist()) == {1, 2, 3}
    for place in range(NODES):
        reached = commit_lens > place
        counts = Counter(out_tokens[reached, place].tolist())
        kept = torch.where(probs[place] < min_p * probs[place].max(), 0.0, probs[place])
        for token, share in enumerate((kept / kept.sum()).tolist()):
            total = int(reached.sum())
            deviation = math.sqrt(total * share * (1 - share))
            assert abs(counts[token] - total * share) <= 5 * deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_have_the_models_dtype(dtype: torch.dtype) -> None:
    from sglang.srt.model_executor.model_runner import ModelRunner

    runner: Any = SimpleNamespace(dtype=dtype, support_pp=False, is_generation=True)
    runner._pp_kwargs = lambda _: {}
    batch: Any = SimpleNamespace(
        input_embeds=torch.zeros(2, 4), replace_embeds=None, replace_positions=None
    )
    given = ModelRunner._extend_forward_kwargs(runner, batch, None)
    assert given["input_embeds"].dtype == dtype
