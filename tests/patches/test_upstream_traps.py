"""Defects of upstream's own penalties and history features that the LZ penalty must not share.

Read or measured in SGLang 0.5.20 to 0.5.23. Each test drives the patched model runner, or the
request path, into the trap.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inprocess import Runner, make_request

PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
OTHER = [9, 10, 9, 10, 9]


@pytest.mark.parametrize("lag", [0, 1])
def test_the_newest_token_counts_although_the_host_reads_it_late(runner: Runner, lag: int) -> None:
    """Under overlap scheduling upstream's penalties count the token before the newest."""
    req = make_request(PROMPT)
    tokens, batch = runner.extend([req])
    runner.assert_exact([PROMPT])
    history, unread = [*PROMPT, *tokens], [tokens[0]]
    for _ in range(12):
        while len(unread) > lag:
            req.output_ids.append(unread.pop(0))
        tokens = runner.decode(tokens, batch)
        runner.assert_exact([history])
        history += tokens
        unread += tokens


def test_a_prefill_between_two_decodes_shifts_nothing(runner: Runner) -> None:
    """Upstream then counts one token never and its successor twice."""
    first, first_batch = runner.extend([make_request(PROMPT)])
    history = [*PROMPT, *first]
    first = runner.decode(first, first_batch)
    runner.assert_exact([history])
    history += first
    second, second_batch = runner.extend([make_request(OTHER)])
    runner.assert_exact([OTHER])
    for _ in range(3):
        first = runner.decode(first, first_batch)
        runner.assert_exact([history])
        history += first
    runner.decode(second, second_batch)
    runner.assert_exact([[*OTHER, *second]])


@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_retracted_request_resumes_with_its_whole_history(
    runner: Runner, include_prompt: bool
) -> None:
    """Upstream's penalizers start from zero when a request is prefilled again."""
    outputs = [11, 12, 11, 12, 11]
    req = make_request(PROMPT, outputs, lz_include_prompt=include_prompt)
    tokens, batch = runner.extend([req])
    visible = [*PROMPT, *outputs] if include_prompt else outputs
    runner.assert_exact([visible])
    runner.decode(tokens, batch)
    runner.assert_exact([[*visible, *tokens]])


def test_merging_and_filtering_batches_moves_no_history(runner: Runner) -> None:
    """Upstream's penalizers keep one tensor a batch and must merge and filter it alike."""
    first, batch = runner.extend([make_request(PROMPT), make_request(OTHER)])
    second, arrived = runner.extend([make_request([3, 3, 3])])
    batch.merge_batch(arrived)
    tokens = runner.decode([*first, *second], batch)
    histories = [[*PROMPT, first[0]], [*OTHER, first[1]], [3, 3, 3, second[0]]]
    runner.assert_exact(histories)
    for req, token in zip(batch.reqs, [*first, *second], strict=True):
        req.output_ids.append(token)
    batch.filter_batch(keep_indices=[0, 2])
    runner.decode([tokens[0], tokens[2]], batch)
    runner.assert_exact([[*histories[0], tokens[0]], [*histories[2], tokens[2]]])


def test_a_decode_that_runs_as_an_extend_is_a_decode(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under data-parallel attention, beside another rank's prefill; upstream's host trails there.

    In this process, because a server does it only where it captured a GPU's graphs.
    """
    req = make_request(PROMPT)
    tokens, batch = runner.extend([req])
    history = [*PROMPT, *tokens]
    prepare = batch.prepare_for_decode

    def prepare_and_convert() -> None:
        prepare()
        batch.convert_decode_to_extend()

    monkeypatch.setattr(batch, "prepare_for_decode", prepare_and_convert)
    for _ in range(3):
        tokens = runner.decode(tokens, batch)
        runner.assert_exact([history])
        history += tokens
    assert not batch.forward_mode.is_decode()


def test_image_placeholders_match_but_have_no_logit(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's penalties index the logits with them.

    In this process, because no multimodal model runs here: upstream's clamp the ids like this.
    """
    embedding = runner.bench.torch_runner.model.model.embed_tokens
    embed, vocab = embedding.forward, embedding.num_embeddings
    monkeypatch.setattr(embedding, "forward", lambda ids: embed(ids.clamp(max=vocab - 1)))
    image = [1_000_003 + 7 * i for i in range(4)]
    prompt = [5, *image, 6, 7, *image, 6, 8, *image]
    tokens, batch = runner.extend([make_request(prompt)])
    runner.assert_exact([prompt])
    runner.decode(tokens, batch)
    runner.assert_exact([[*prompt, *tokens]])


def test_no_tensor_as_wide_as_the_vocabulary_is_made(runner: Runner) -> None:
    """Upstream allocates, zeroes and adds rows x vocabulary for every penalised step."""
    _, batch = runner.extend([make_request(PROMPT)])
    assert not batch.sampling_info.penalizer_orchestrator.is_required
    forward_only = batch.sampling_info.copy_for_forward()
    assert forward_only.acc_additive_penalties is None
    assert forward_only.acc_scaling_penalties is None


def test_the_windows_are_there_before_the_first_request(bench_runner: Any) -> None:
    """Upstream's penalizers allocate for every batch, after the memory was given away."""
    model_runner = bench_runner.torch_runner
    pool = model_runner.req_to_token_pool
    assert len(pool.lz_penalizer.state.tokens) == len(pool.req_to_token)


def test_every_request_pool_gets_windows() -> None:
    """Whoever makes one, at start or later, goes on to where they are reserved, before graphs."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    assert "_init_post_memory_pool_components" in ModelRunner.alloc_memory_pool.__code__.co_names
    assert "reserve_windows" in ModelRunner._init_post_memory_pool_components.__code__.co_names


def test_every_speculative_algorithm_is_exact_or_refuses(server_config: dict[str, Any]) -> None:
    """Upstream's penalties are one row for all draft nodes, or silently none.

    Its UNO takes the first of each step's tokens in a forward pass of its own.
    """
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_lz.http.admission import admit

    names = {name for name in dir(SpeculativeAlgorithm) if name.isupper()} - {"NONE"}
    exact = {"DFLASH", "DSPARK", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NGRAM", "STANDALONE"}
    assert names == exact | {"UNO"}
    for name in names:
        server_config["speculative_algorithm"] = name
        fields = {"lz_penalty": 0.15}
        if name in exact:
            admit(SamplingParams(), fields, is_encoder_decoder=False, has_input_embeds=False)
            continue
        with pytest.raises(ValueError, match=name):
            admit(SamplingParams(), fields, is_encoder_decoder=False, has_input_embeds=False)


def test_every_exact_algorithm_verifies_in_the_hooked_place() -> None:
    """MTP in both its forms needs models and kernels for a GPU; its verification is EAGLE's.

    tests/patches/test_draft_trees.py drives that place node by node, and those of blocks.
    """
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
    from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2
    from sglang.srt.speculative.eagle_worker_common import run_eagle_verify
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
    from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPVerifyInput
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2
    from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleWorkerV2
    from sglang.srt.speculative.ngram_worker import NGRAMWorker
    from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

    assert "verify_block" in DFlashWorkerV2.forward_batch_generation.__code__.co_names
    assert "verify_block" in DSparkWorkerV2._forward_decode.__code__.co_names
    assert "eagle_sample" in run_eagle_verify.__code__.co_names
    assert "eagle_sample" in NGRAMWorker.forward_batch_generation.__code__.co_names
    for worker in (EAGLEWorkerV2, MultiLayerEagleWorkerV2):
        assert "run_eagle_verify" in worker.verify.__code__.co_names
    for worker in (FrozenKVMTPWorkerV2, StandaloneWorkerV2):
        assert worker.verify is EAGLEWorkerV2.verify
    fields = {"draft_token", "draft_token_num", "retrieve_next_token", "retrieve_next_sibling"}
    assert fields <= set(FrozenKVMTPVerifyInput.__dataclass_fields__)


def test_an_ollama_seed_does_not_end_in_an_error() -> None:
    """Upstream maps it to a field that SamplingParams does not have."""
    from sglang.srt.entrypoints.ollama.serving import OllamaServing
    from sglang.srt.sampling.sampling_params import SamplingParams

    serving = OllamaServing(SimpleNamespace())
    params = serving._convert_options_to_sampling_params({"seed": 7})
    assert SamplingParams(**params).sampling_seed == 7
