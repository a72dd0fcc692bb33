"""Upstream's verification of draft trees, in this process: node by node, and what it keeps."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
import torch

from inprocess import LZ, TOLERANCE, Runner, change, make_request
from lz_penalty.kernels import cpu as cpu_kernels
from lz_penalty.kernels import history_cpu
from oracle import Penalties, penalised, visible_history
from sglang_lz.scheduler import sampling
from trees import Tree

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 10, 9], [3, 3, 3, 3], [5, 6, 5, 6], [7, 9, 7, 10]]
PARAMETERS: list[dict[str, Any]] = [
    {"lz_penalty": 2.0, "lz_window_size": 6, "lz_buffer_size": 3},
    {"lz_penalty": 0.0},
    {"lz_penalty": 0.5, "lz_include_prompt": False, "lz_cost": "rate"},
    {"lz_penalty": 0.0, "frequency_penalty": 1.0, "repetition_penalty": 1.3, "penalty_last_n": 9},
    {"lz_penalty": 0.5, "presence_penalty": 0.5, "dry_multiplier": 0.8, "no_repeat_ngram_size": 4},
]
# Few tokens, so that drafts are accepted, rejected and repeated.
TOKENS = [3, 5, 6, 7, 9, 10]


def grow(rng: random.Random, root: int, nodes: int, chain: bool) -> Tree:
    """A tree as drafters make them: siblings differ."""
    parent = [0, *(node - 1 if chain else rng.randrange(node) for node in range(1, nodes))]
    tokens = [root]
    for node in range(1, nodes):
        elders = {tokens[i] for i in range(1, node) if parent[i] == parent[node]}
        tokens.append(rng.choice([token for token in TOKENS if token not in elders]))
    return Tree(tokens, parent)


def judged(
    logits: torch.Tensor, prompt: list[int], outputs: list[int], given: dict[str, Any]
) -> np.ndarray:
    """The oracle's logits of a row after some outputs, float64 [V]."""
    history = visible_history(prompt, outputs, given["lz_include_prompt"])
    after_lz = logits.double().numpy() + change(history, given, len(logits))
    own = {name: value for name, value in given.items() if not name.startswith("lz_")}
    return penalised(after_lz, prompt, outputs, Penalties(**own))


def verify(batch: Any, trees: list[Tree], logits: torch.Tensor) -> list[list[int]]:
    """Upstream's `eagle_sample` on these trees; returns the tokens that each row accepted."""
    from sglang.srt.speculative.eagle_info import EagleVerifyInput
    from sglang.srt.speculative.eagle_utils import eagle_sample

    nodes = len(trees[0].tokens)
    first, sibling = zip(*(tree.links() for tree in trees), strict=True)
    verify_input = EagleVerifyInput(
        # Where adaptive speculation drafts nothing, upstream passes on the int32 tokens it sampled.
        draft_token=torch.tensor(
            [token for tree in trees for token in tree.tokens],
            dtype=torch.int32 if nodes == 1 else torch.int64,
        ),
        custom_mask=None,
        positions=None,
        retrieve_index=torch.arange(len(trees) * nodes).view(-1, nodes),
        retrieve_next_token=torch.tensor(first),
        retrieve_next_sibling=torch.tensor(sibling),
        retrieve_cum_len=None,
        spec_steps=nodes - 1,
        topk=2,
        draft_token_num=nodes,
        capture_hidden_mode=None,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )
    output = SimpleNamespace(next_token_logits=logits)
    predict, accept_lens, accept_index = eagle_sample(verify_input, batch, output)
    return [
        predict[accept_index[row, :count].long()].tolist()
        for row, count in enumerate(accept_lens.tolist())
    ]


def verify_dflash(batch: Any, blocks: list[Tree], logits: torch.Tensor) -> list[list[int]]:
    """What DFLASH's worker does with these chains; returns the tokens that each row accepted."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    candidates = torch.tensor([block.tokens for block in blocks])
    verified = sampling.verify_block(candidates, batch, logits, None)
    worker: Any = SimpleNamespace(
        _selector_sample=None,
        _tp_sync=SimpleNamespace(sync=lambda *_: None),
        _use_triton_accept_bonus=False,
        block_size=candidates.shape[1],
    )
    accept_len, commit_lens, _, out_tokens, _ = DFlashWorkerV2._accept_block(
        worker,
        candidates=candidates,
        next_token_logits=logits,
        sampling_info=batch.sampling_info,
        draft_input=None,
        prefix_lens=batch.seq_lens,
        bs=len(blocks),
    )
    sampling.accept_block(verified, candidates, accept_len)
    return [out_tokens[row, :count].tolist() for row, count in enumerate(commit_lens.tolist())]


def verify_dspark(batch: Any, blocks: list[Tree], logits: torch.Tensor) -> list[list[int]]:
    """The same by DSPARK's worker."""
    from sglang.srt.speculative.dspark_components.dspark_verify import accept_draft_tokens

    candidates = torch.tensor([block.tokens for block in blocks])
    verified = sampling.verify_block(candidates, batch, logits, None)
    draft_block: Any = SimpleNamespace(greedy_mask=None)
    counts, bonus, _ = accept_draft_tokens(
        candidates=candidates,
        target_logits=logits,
        draft_block=draft_block,
        sampling_info=batch.sampling_info,
        draft_input=None,
        gamma=candidates.shape[1] - 1,
        verify_num_draft_tokens=candidates.shape[1],
    )
    sampling.accept_block(verified, candidates, counts)
    return [
        [*block.tokens[1 : count + 1], last]
        for block, count, last in zip(blocks, counts.tolist(), bonus.tolist(), strict=True)
    ]


def domino_blocks(newest: list[int], nodes: int, vocab: int) -> list[Tree]:
    """Chains that a Domino head of random weights drafts after the newest tokens."""
    from sglang.srt.speculative.domino_utils import domino_greedy_rollout

    width = 8
    head = torch.full((vocab, width), -1.0)
    head[TOKENS] = torch.randn(len(TOKENS), width)
    project = torch.nn.Sequential(
        torch.nn.Linear(2 * width, 4, bias=False),
        torch.nn.SiLU(),
        torch.nn.Linear(4, vocab, bias=False),
    )
    with torch.inference_mode():
        drafts = domino_greedy_rollout(
            draft_hidden=torch.rand(len(newest), nodes, width),
            bonus_tokens=torch.tensor(newest),
            target_embedding=torch.nn.Embedding(vocab, width),
            lm_head_weight=head,
            prefix_gru=torch.nn.GRU(width, width, batch_first=True, bias=False),
            embed_proj=project,
            vocab_size=vocab,
            shift_label=False,
            candidate_pool_size=len(TOKENS),
            in_cuda_graph=False,
        )
    parents = [0, *range(nodes - 1)]
    return [
        Tree([token, *own], parents) for token, own in zip(newest, drafts.tolist(), strict=True)
    ]


VERIFIES = {"DFLASH": verify_dflash, "DOMINO": verify_dflash, "DSPARK": verify_dspark}


def adaptive_sizes() -> list[int]:
    """The nodes of the trees that --speculative-adaptive switches between: chains, one may be 1."""
    from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config

    return [steps + 1 for steps in resolve_candidate_steps_from_config()]


@pytest.mark.parametrize("kind", ["chain", "tree", "adaptive", *VERIFIES])
def test_every_node_is_judged_and_only_the_accepted_path_is_kept(
    runner: Runner, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of drafts between plain decodes, for rows with and without the penalty."""
    sizes = adaptive_sizes() if kind == "adaptive" else [7]
    assert kind != "adaptive" or sizes == [1, 2, 4, 6, 8]
    monkeypatch.setattr(sampling, "_tree_sizes", lambda: set(sizes))
    sampling.reserve_windows(runner.bench.torch_runner)
    rng = random.Random(f"trees {kind != 'tree'}")
    torch.manual_seed(0)
    parameters = [LZ | given for given in PARAMETERS]
    reqs = [make_request(p, **lz) for p, lz in zip(PROMPTS, parameters, strict=True)]
    newest, batch = runner.extend(reqs)
    outputs = [[token] for token in newest]
    lengths = []
    for round_ in range(12):
        nodes = sizes[round_ % len(sizes)] if round_ % 2 else rng.choice(sizes)
        vocab = batch.model_config.vocab_size
        if kind == "DOMINO":
            trees = domino_blocks([output[-1] for output in outputs], nodes, vocab)
        else:
            trees = [grow(rng, output[-1], nodes, kind != "tree") for output in outputs]
        logits = torch.randn(len(reqs) * nodes, vocab)
        logits[:, TOKENS] += 6
        for row, tree in enumerate(trees):  # a target that often agrees with its drafter
            for child in range(1, nodes):
                liking = 6 * (rng.random() < 0.5)
                logits[row * nodes + tree.parent[child], tree.tokens[child]] += liking
        before = logits.clone()
        accepted = VERIFIES.get(kind, verify)(batch, trees, logits)
        for row, (tree, lz, output) in enumerate(zip(trees, parameters, outputs, strict=True)):
            expected = []
            for node in range(nodes):
                drafted = [*output, *(tree.tokens[i] for i in tree.path(node)[1:])]
                at = row * nodes + node
                expected.append(judged(before[at], PROMPTS[row], drafted, lz))
                np.testing.assert_allclose(logits[at], expected[-1], atol=TOLERANCE)
            walked, node = [], 0
            while node is not None:
                best = int(expected[node].argmax())
                walked.append(best)
                children = (child for child in range(1, nodes) if tree.parent[child] == node)
                node = next((child for child in children if tree.tokens[child] == best), None)
            assert accepted[row] == walked
            output.extend(walked)
            lengths.append(len(walked))
        batch.seq_lens += torch.tensor([len(tokens) for tokens in accepted])
        if round_ % 4 == 3:  # a plain step in between, as a mixed chunk brings
            runner.decode([output[-1] for output in outputs], batch)
            before, after = runner.seen[-1]
            for row, (lz, output) in enumerate(zip(parameters, outputs, strict=True)):
                expected_row = judged(before[row], PROMPTS[row], output, lz)
                np.testing.assert_allclose(after[row], expected_row, atol=TOLERANCE)
                output.append(int(after[row].argmax()))
    assert {1, 2, 3, 4} <= set(lengths)


@pytest.mark.full
def test_numba_compiles_nothing_after_the_start(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request would wait for it: seconds, where nothing can be kept on disk."""
    fresh = {}
    for module, name in itertools.product((cpu_kernels, history_cpu), ("_seed", "_run")):
        kernel = numba.njit(getattr(module, name).py_func)
        fresh[module, name] = kernel
        monkeypatch.setattr(module, name, kernel)
    monkeypatch.setattr(sampling, "_tree_sizes", lambda: set(adaptive_sizes()))
    sampling.reserve_windows(runner.bench.torch_runner)
    at_start = {name: kernel.signatures[:] for name, kernel in fresh.items()}
    # Rows of logits stand one after the other, or further apart.
    counts = {"_seed": 1, "_run": 2}
    for (_, name), signatures in at_start.items():
        assert len(signatures) == counts[name], name
    rng = random.Random(0)
    reqs = [make_request(p, **given) for p, given in zip(PROMPTS, PARAMETERS, strict=True)]
    newest, batch = runner.extend(reqs)
    for nodes, verifies in itertools.product(adaptive_sizes(), (verify, verify_dflash)):
        trees = [grow(rng, token, nodes, chain=True) for token in newest]
        # Upstream cuts the padding off a vocabulary that is no multiple of 64.
        for padding in (0, 64):
            vocab = batch.model_config.vocab_size
            logits = torch.randn(len(reqs) * nodes, vocab + padding)[:, :vocab]
            accepted = verifies(batch, trees, logits)
        newest = [tokens[-1] for tokens in accepted]
        batch.seq_lens += torch.tensor([len(tokens) for tokens in accepted])
    runner.decode(newest, batch)
    assert {name: kernel.signatures for name, kernel in fresh.items()} == at_start


def test_every_size_of_an_adaptive_tree_is_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import runtime_context

    spec = SimpleNamespace(
        speculative_num_draft_tokens=4, speculative_adaptive=False, speculative_adaptive_config=None
    )
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec)
    assert sampling._tree_sizes() == {4}
    spec.speculative_adaptive = True
    assert sampling._tree_sizes() == {1, 2, 4, 6, 8} == {4, *adaptive_sizes()}
    spec.speculative_adaptive, spec.speculative_num_draft_tokens = False, None
    assert sampling._tree_sizes() == set()
