"""Blocks of drafts: what surrounds the verification that test_draft_trees.py drives."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inprocess import LZ, make_request
from releases import RELEASE, RELEASES
from sglang_lz.sampling import has_penalty

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
    """It leaves the logits on the ranks; 0.5.22 has none."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    reqs = [make_request([5, 6], **(LZ | {"lz_penalty": 0.0} | given)) for given in ({}, fields)]
    batch: Any = SimpleNamespace(reqs=reqs, has_grammar=False, return_logprob=False)
    assert has_penalty(batch) is bool(fields)
    can_skip = getattr(DFlashWorkerV2, "_can_skip_verify_logits", None)
    if can_skip is None:
        assert RELEASES[0] != RELEASE
        return
    info = sampling_info(2, 0.0)
    info.is_all_greedy, info.sampling_mask_batch_indices = greedy, None
    worker: Any = SimpleNamespace(_selector_sample=None)
    assert can_skip(worker, batch, info) == (greedy and not fields)


@pytest.mark.parametrize("sampled_drafts", [False, True], ids=["greedy drafts", "sampled drafts"])
@pytest.mark.parametrize("min_p", [0.0, 0.45])
def test_blocks_are_accepted_as_their_logits_say(
    bench_runner: Any, min_p: float, sampled_drafts: bool
) -> None:
    """Every token has the target's distribution after min_p, also where a selector drew the
    drafts, which needs weights that no demo has."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    torch.manual_seed(0)
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.5, 0.15, 0.25], [0.7, 0.1, 0.1, 0.1]])
    drafts = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.25, 0.25, 0.5]])
    if sampled_drafts:
        drawn = torch.stack([q.multinomial(TRIALS, replacement=True) for q in drafts], 1)
    else:
        drawn = torch.tensor([1, 3]).expand(TRIALS, 2)
    ids = torch.arange(VOCAB).expand(TRIALS, NODES - 1, VOCAB)
    worker: Any = SimpleNamespace(
        _selector_sample=(ids, drafts.expand(TRIALS, -1, -1)) if sampled_drafts else None,
        _draft_probs_buf=None,
        _block_verification=False,
        _tp_sync=SimpleNamespace(sync=lambda *_: None),
        block_size=NODES,
    )
    worker._selector_sampling_accept = DFlashWorkerV2._selector_sampling_accept.__get__(worker)
    _, commit_lens, _, out_tokens, _ = DFlashWorkerV2._accept_block(
        worker,
        candidates=torch.cat([torch.zeros(TRIALS, 1, dtype=torch.int64), drawn], 1),
        next_token_logits=probs.log().repeat(TRIALS, 1),
        sampling_info=sampling_info(TRIALS, min_p),
        draft_input=SimpleNamespace(max_top_k=1 << 30, uniform_top_k_value=None),
        prefix_lens=torch.zeros(TRIALS, dtype=torch.int64),
        bs=TRIALS,
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
