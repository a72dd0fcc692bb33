"""The server configurations under test, by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.launch import FORKED as IS_FORKED
from server.launch import Config
from sglang_lz.demo import REASONER_PATH

SITE = Path(__file__).with_name("site")
HOOKED = Path(__file__).with_name("hooked")
"""What a sitecustomize imports."""
# What runs on a CPU only with help (site/sitecustomize.py).
HELPED = (
    (
        "PYTHONPATH",
        os.pathsep.join(filter(None, (str(SITE), str(HOOKED), os.environ.get("PYTHONPATH")))),
    ),
)
# Started in a fraction of the time; `overlap` and `stock` start as they do for a user.
FORKED = (*HELPED, IS_FORKED)

# Upstream would find an address of the machine's own, would wait for a CUDA event, and would take
# a prefill server that is slow to answer for dead.
DISAGGREGATION = (
    ("SGLANG_HOST_IP", "127.0.0.1"),
    ("SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE", "1000"),
    ("SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX", "0"),
)

# Every answer begins with a thinking section, if its request says that the model thinks.
THINKS = ("--reasoning-parser", "deepseek-r1")

# Calls of tools come back as such.
CALLS = ("--tool-call-parser", "qwen")

# So few that a test can fill them all.
FEW_ROWS = ("--max-running-requests", "16")

OBSERVES = ("--lz-observe-loops", "1")

# Room for half of what the retraction test asks for, and a scheduler that expects short answers.
TINY_POOL = ("--max-total-tokens", "640", "--schedule-conservativeness", "0.1")
HOPE = (("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "8"),)

# EAGLE-3 and STANDALONE propose to the same verification; each server takes a minute.
SPECULATION = (
    *("eagle-tree", "ngram", "eagle", "eagle-tp2", "disaggregated-eagle", "eagle-adaptive"),
    *("dflash", "dflash-tp2", "dspark", "dspark-tp2"),
)
# What each part does is shown on servers that have it alone: these run few tests.
COMBINED = (
    *("disaggregated-dflash", "disaggregated-dspark"),
    *("dp-attention-eagle3", "dp-attention-dspark"),
)

ONLY_FULL = (
    *("eagle-adaptive", "eagle-tp2", "dflash-tp2", "dspark-tp2", "tiny-pool-mixed"),
    *("disaggregated-eagle", *COMBINED),
)
"""Servers that only `scripts/test full` starts: they combine what others have alone, and with their
several processes take longest."""


def drafts(algorithm: str, steps: int, topk: int, tokens: int) -> tuple[str, ...]:
    """Flags of speculation with a draft model: how deep, how wide and how large its trees are."""
    return (
        *("--speculative-algorithm", algorithm, "--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", str(topk), "--speculative-num-draft-tokens", str(tokens)),
    )


CONFIGURATIONS = {
    config.name: config
    for config in (
        # Most tests name it: its worker begins with it, or the others would wait for it at the end.
        Config("overlap", ("--enable-streaming-session", *FEW_ROWS, *CALLS)),
        Config(
            "ngram",
            ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8", *THINKS),
            FORKED,
        ),
        Config(
            "eagle",
            (
                *(*drafts("EAGLE", 3, 1, 4), "--speculative-use-rejection-sampling"),
                *("--chunked-prefill-size", "32", "--page-size", "16"),
                "--enable-return-hidden-states",
            ),
            FORKED,
            draft="eagle",
        ),
        # Upstream would capture CUDA graphs for every size of tree.
        Config(
            "eagle-adaptive",
            (
                *("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "1"),
                "--speculative-adaptive",
                "--disable-cuda-graph",
            ),
            FORKED,
            draft="eagle",
        ),
        Config(
            "dflash",
            (
                *("--speculative-algorithm", "DFLASH", *THINKS),
                *("--chunked-prefill-size", "32", "--page-size", "16"),
            ),
            FORKED,
            draft="dflash",
        ),
        # For DFLASH and DSPARK upstream schedules with overlap on a CPU, for no other speculation.
        Config(
            "dflash-tp2",
            ("--speculative-algorithm", "DFLASH", "--tp", "2", "--disable-overlap-schedule"),
            FORKED,
            draft="dflash",
        ),
        Config(
            "dspark",
            (
                *("--speculative-algorithm", "DSPARK", *THINKS),
                *("--chunked-prefill-size", "32", "--page-size", "16"),
            ),
            FORKED,
            draft="dspark",
        ),
        Config(
            "dspark-tp2",
            ("--speculative-algorithm", "DSPARK", "--tp", "2", "--disable-overlap-schedule"),
            FORKED,
            draft="dspark",
        ),
        Config("eagle-tree", (*drafts("EAGLE", 3, 3, 8), *THINKS), FORKED, draft="eagle"),
        Config("eagle-tp2", (*drafts("EAGLE", 3, 2, 6), "--tp", "2"), FORKED, draft="eagle"),
        Config(
            "disaggregated-eagle",
            (*drafts("EAGLE", 3, 2, 6), *THINKS),
            (*DISAGGREGATION, *FORKED),
            decode_flags=("--disaggregation-decode-retraction-backup", "cpu_tensor"),
            draft="eagle",
        ),
        *(
            Config(
                f"disaggregated-{draft}",
                ("--speculative-algorithm", draft.upper(), *THINKS),
                (*DISAGGREGATION, *FORKED),
                decode_flags=("--disaggregation-decode-retraction-backup", "cpu_tensor"),
                draft=draft,
            )
            for draft in ("dflash", "dspark")
        ),
        Config(
            "disaggregated",
            env=(*DISAGGREGATION, *FORKED),
            decode_flags=(
                *("--disaggregation-decode-retraction-backup", "cpu_tensor"),
                *("--max-total-tokens", "640", "--num-reserved-decode-tokens", "8"),
            ),
        ),
        Config(
            "no-overlap",
            (
                *("--disable-overlap-schedule", "--enable-streaming-session", *THINKS),
                "--prepare-proper-tokens",
                *FEW_ROWS,
            ),
            FORKED,
        ),
        # Here also the wire format between the processes that is not pickle, fields by position.
        Config(
            "chunked",
            (
                *("--chunked-prefill-size", "16", "--page-size", "16"),
                *("--stream-interval", "2", "--tool-call-parser", "hermes"),
            ),
            (("SGLANG_USE_PICKLE_IPC", "0"), *FORKED),
        ),
        Config(
            "mixed-chunk",
            (
                *("--chunked-prefill-size", "16", "--enable-mixed-chunk"),
                *(*THINKS, *OBSERVES, *FEW_ROWS),
            ),
            FORKED,
        ),
        Config("tiny-pool", (*TINY_POOL, *THINKS), (*HOPE, *FORKED)),
        Config(
            "tiny-pool-mixed",
            (
                *TINY_POOL,
                *("--chunked-prefill-size", "16", "--enable-mixed-chunk"),
                "--disable-overlap-schedule",
            ),
            (*HOPE, *FORKED),
        ),
        Config("tp2", ("--tp", "2", *OBSERVES), FORKED),
        # Here also seeds count, whichever server a request comes to and whatever else is there.
        Config(
            "dp2",
            (
                *("--dp", "2", "--enable-deterministic-inference", *CALLS),
                *("--lz-loop-finish-reason", "stop"),
            ),
            FORKED,
        ),
        Config("pp2", ("--pp-size", "2"), FORKED),
        Config(
            "dp-attention",
            ("--tp", "2", "--dp", "2", "--enable-dp-attention"),
            FORKED,
            as_qwen3=True,
        ),
        Config(
            "dp-attention-eagle3",
            ("--tp", "2", "--dp", "2", "--enable-dp-attention", *drafts("EAGLE3", 3, 2, 6)),
            FORKED,
            draft="eagle3",
            as_qwen3=True,
        ),
        Config(
            "dp-attention-dspark",
            (
                *("--tp", "2", "--dp", "2", "--enable-dp-attention", "--enable-dp-lm-head"),
                *("--speculative-algorithm", "DSPARK"),
            ),
            FORKED,
            draft="dspark",
            as_qwen3=True,
        ),
        Config(
            "adapters",
            (
                *("--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "4"),
                *("--lora-target-modules", "q_proj", "v_proj"),
                *("--enable-return-hidden-states", "--enable-custom-logit-processor"),
                *("--lz-loop-finish-reason", "length", *CALLS),
            ),
            FORKED,
        ),
        Config(
            "defaults",
            (
                *(
                    "--preferred-sampling-params",
                    '{"lz_penalty": 0.5, "lz_buffer_size": 16, "lz_include_prompt": true, '
                    '"lz_cost": "rate", "presence_penalty": 0.7}',
                ),
                *("--lz-max-window-size", "24"),
            ),
            FORKED,
        ),
        Config(
            "reasoner",
            ("--model-path", str(REASONER_PATH), "--max-running-requests", "64"),
            FORKED,
        ),
        Config("stock", stock=True),
    )
}

# Where the scheduler takes different ways from one token to the next.
SCHEDULERS = ("overlap", "no-overlap", "chunked", "mixed-chunk")


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on the servers of these configurations (fixture `server`).

    With pytest-xdist one worker has all of a configuration. Those of one kind of draft share a
    worker, too: its draft models, and what a server without speculation answers, are made once.

    With --representative, as `scripts/test` and `scripts/test all` have it, a test runs only on the
    first server that it names; with `@pytest.mark.each_kind` on the first of each kind (`kind_of`),
    with `@pytest.mark.every_server` on all. So name the simplest one first. Servers of `ONLY_FULL`
    start for none of these.
    """
    # Else the test would not run in continuous integration, though one of its servers starts there.
    assert names[0] not in ONLY_FULL or set(names) <= set(ONLY_FULL), names
    servers = [pytest.param(name, marks=_marks_of(name)) for name in names]
    return pytest.mark.parametrize("server", servers, indirect=True)


def kind_of(config: Config) -> str:
    """How the server comes from one token to the next."""
    if config.draft in ("dflash", "dspark"):
        return "blocks of drafts"
    return "trees of drafts" if config.draft or config.name == "ngram" else "one token a step"


def _marks_of(name: str) -> list[pytest.MarkDecorator]:
    group = pytest.mark.xdist_group(_group_of(CONFIGURATIONS[name]))
    return [group, *([pytest.mark.full] if name in ONLY_FULL else [])]


def _group_of(config: Config) -> str:
    kind = kind_of(config)
    is_shared = kind == "blocks of drafts" or config.name in SPECULATION
    return kind if is_shared else config.name
