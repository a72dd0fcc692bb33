"""Server modes in which the penalties and the loop guard are exact; others are rejected.

In each function, `config` looks up the effective value of a server argument by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lz_penalty.fields import repetition
from lz_penalty.fields.repetition import END_THINKING, RepetitionDetection
from sglang_lz.bounds.refusal import Refusal

# Apple's and Ascend's backends have their own sampling; no other backend was ever tested.
SUPPORTED_DEVICES = ("cuda", "cpu")
# Algorithms that draft a block at once. They run custom logit processors during verification.
BLOCKS = ("DFLASH", "DSPARK")
# Algorithms that verify in upstream's eagle_sample or in the workers of BLOCKS, where each draft
# node has its own window. The others (UNO, plugins) sample elsewhere, or twice per step.
SUPPORTED_SPECULATION = ("EAGLE", "EAGLE3", "FROZEN_KV_MTP", "STANDALONE", "NGRAM", *BLOCKS)

WITH_DP_ATTENTION = ("EAGLE", "EAGLE3", "FROZEN_KV_MTP", "DSPARK")
"""Of these algorithms, those that may run under data-parallel attention."""


def unsupported_modes(config: Callable[[str], Any]) -> Iterator[str]:
    """Server modes in which the penalty is not exact, or not known to be exact."""
    from sglang.srt.environ import envs

    speculation = config("speculative_algorithm")
    if speculation is not None and speculation not in SUPPORTED_SPECULATION:
        yield f"with speculative decoding by {speculation}"
    if speculation == "DSPARK" and envs.SGLANG_RAGGED_VERIFY_MODE.get() != "static":
        # The drafts decide how many of them are verified, which may not be lossless.
        yield "with SGLANG_RAGGED_VERIFY_MODE other than static, which verifies parts of blocks"
    thresholds = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    if speculation is not None and any(config(name) < 1 for name in thresholds):
        yield "with --speculative-accept-threshold-single or -acc below 1, which is not lossless"
    # Upstream itself does not start with the others, except with DFLASH on CUDA, where it was
    # never tested.
    if config("attn_dp_size") > 1 and speculation not in (None, *WITH_DP_ATTENTION):
        yield f"with speculative decoding by {speculation} under data-parallel attention"
    if speculation is not None and envs.SGLANG_SIMULATE_ACC_LEN.get() > 0:
        yield "with SGLANG_SIMULATE_ACC_LEN, which makes up what is accepted"
    if config("enable_streaming_session"):
        # Upstream's own answers are wrong there: a session keeps the place of its newest token,
        # which no step has cached, and a verify step has reserved it (try_cache_finished_req).
        if speculation is not None:
            yield "with speculative decoding under --enable-streaming-session"
        if config("disaggregation_mode") == "decode":  # which cannot recognize a new turn
            yield "on a decode server under --enable-streaming-session"
    if config("decoupled_spec_role") != "null":
        yield "with decoupled speculative decoding"
    if config("dllm_algorithm") is not None:
        yield "with diffusion language models"
    if config("enable_pdmux"):
        yield "with prefill/decode multiplexing (--enable-pdmux)"
    if config("attn_cp_size") > 1 or config("dcp_size") > 1:
        yield "with context parallelism"
    if config("device") not in SUPPORTED_DEVICES:
        yield f"on device {config('device')}"


def ignored_transforms(config: Callable[[str], Any]) -> Iterator[Refusal]:
    """Refusals of request fields that upstream does not support in a server's mode."""
    if config("enable_deterministic_inference"):  # an assertion would crash the scheduler
        where = "with --enable-deterministic-inference, which cannot sample with it"
        yield Refusal("min_p", "left out", where)
    speculation = config("speculative_algorithm")
    if speculation is None:
        return
    where = f"with speculative decoding by {speculation}, which ignores it"
    if speculation not in SUPPORTED_SPECULATION:
        yield Refusal("min_p", "left out", where)
    if speculation not in BLOCKS:
        yield Refusal("custom_logit_processor", "left out", where)


def early_processors(config: Callable[[str], Any]) -> Iterator[Refusal]:
    """The refusal of custom logit processors where they do not run as in plain decoding."""
    speculation = config("speculative_algorithm")
    if speculation in BLOCKS:
        yield Refusal(
            "custom_logit_processor",
            "left out",
            f"beside a penalty with speculative decoding by {speculation}, which runs it before "
            "the grammar's mask and shows it no draft",
        )


def unguarded_modes(
    config: Callable[[str], Any], detection: RepetitionDetection
) -> Iterator[Refusal]:
    """Refusals of the loop guard in server modes where it is not exact, or not known to be."""
    field = repetition.FIELD
    if config("decoupled_spec_role") != "null":
        yield Refusal(field, "left out", "with decoupled speculative decoding")
    if config("dllm_algorithm") is not None:
        yield Refusal(field, "left out", "with diffusion language models")
    if detection.ignore_numbers and config("skip_tokenizer_init"):
        where = "on a server with --skip-tokenizer-init"
        why = "it cannot tell which tokens are numbers"
        yield Refusal(f"{field}.ignore_numbers", "false", where, why)
    if detection.action != END_THINKING:
        return
    action = f"{field}.action"
    if config("reasoning_parser") is None:
        yield Refusal(action, '"stop"', "on a server without --reasoning-parser")
    if config("skip_tokenizer_init"):
        yield Refusal(action, '"stop"', "on a server with --skip-tokenizer-init")
    # Upstream's other backends cannot restrict the vocabulary to the tokens that end the section.
    if config("grammar_backend") != "xgrammar":
        yield Refusal(action, '"stop"', "on a server without --grammar-backend xgrammar")
