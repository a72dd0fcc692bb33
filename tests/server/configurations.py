"""The server configurations under test, by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from server.launch import FORKED as IS_FORKED
from server.launch import Config
from sglang_lz.demo import REASONER_PATH

Env = tuple[tuple[str, str], ...]
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


def _config(name: str, *flags: str, env: Env = FORKED, **others: Any) -> Config:
    return Config(name, tuple(part for given in flags for part in given.split()), env, **others)


_DISAGGREGATED: Any = {
    "env": (*DISAGGREGATION, *FORKED),
    "decode_flags": ("--disaggregation-decode-retraction-backup", "cpu_tensor"),
}
_CHUNKS = "--chunked-prefill-size 32 --page-size 16"
# For DFLASH and DSPARK upstream schedules with overlap on a CPU, for no other speculation.
_IN_TURN = "--tp 2 --disable-overlap-schedule"
_MIXED = "--chunked-prefill-size 16 --enable-mixed-chunk"
_DP_ATTENTION = "--tp 2 --dp 2 --enable-dp-attention"
_PREFERRED = (
    '{"lz_penalty":0.5,"lz_buffer_size":16,"lz_include_prompt":true,"lz_cost":"rate",'
    '"presence_penalty":0.7}'
)

CONFIGURATIONS = {
    config.name: config
    for config in (
        # Most tests name it: its worker begins with it, or the others would wait for it at the end.
        _config("overlap", "--enable-streaming-session", *FEW_ROWS, *CALLS, env=()),
        _config("ngram", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8", *THINKS),
        _config(
            "eagle",
            *drafts("EAGLE", 3, 1, 4),
            f"{_CHUNKS} --speculative-use-rejection-sampling --enable-return-hidden-states",
            draft="eagle",
        ),
        # Upstream would capture CUDA graphs for every size of tree.
        _config(
            "eagle-adaptive",
            "--speculative-algorithm EAGLE --speculative-eagle-topk 1",
            "--speculative-adaptive --disable-cuda-graph",
            draft="eagle",
        ),
        _config("dflash", f"--speculative-algorithm DFLASH {_CHUNKS}", *THINKS, draft="dflash"),
        _config("dflash-tp2", f"--speculative-algorithm DFLASH {_IN_TURN}", draft="dflash"),
        _config("dspark", f"--speculative-algorithm DSPARK {_CHUNKS}", *THINKS, draft="dspark"),
        _config("dspark-tp2", f"--speculative-algorithm DSPARK {_IN_TURN}", draft="dspark"),
        _config("eagle-tree", *drafts("EAGLE", 3, 3, 8), *THINKS, draft="eagle"),
        _config("eagle-tp2", *drafts("EAGLE", 3, 2, 6), "--tp 2", draft="eagle"),
        _config(
            "disaggregated-eagle",
            *drafts("EAGLE", 3, 2, 6),
            *THINKS,
            draft="eagle",
            **_DISAGGREGATED,
        ),
        *(
            _config(
                f"disaggregated-{draft}",
                f"--speculative-algorithm {draft.upper()}",
                *THINKS,
                draft=draft,
                **_DISAGGREGATED,
            )
            for draft in ("dflash", "dspark")
        ),
        _config(
            "disaggregated",
            env=_DISAGGREGATED["env"],
            decode_flags=(
                *_DISAGGREGATED["decode_flags"],
                *("--max-total-tokens", "640", "--num-reserved-decode-tokens", "8"),
            ),
        ),
        _config(
            "no-overlap",
            "--disable-overlap-schedule --enable-streaming-session --prepare-proper-tokens",
            *THINKS,
            *FEW_ROWS,
        ),
        # Here also the wire format between the processes that is not pickle, fields by position.
        _config(
            "chunked",
            "--chunked-prefill-size 16 --page-size 16 --stream-interval 2",
            "--tool-call-parser hermes",
            env=(("SGLANG_USE_PICKLE_IPC", "0"), *FORKED),
        ),
        _config("mixed-chunk", _MIXED, *THINKS, *OBSERVES, *FEW_ROWS),
        _config("tiny-pool", *TINY_POOL, *THINKS, env=(*HOPE, *FORKED)),
        _config(
            "tiny-pool-mixed",
            *TINY_POOL,
            f"{_MIXED} --disable-overlap-schedule",
            env=(*HOPE, *FORKED),
        ),
        _config("tp2", "--tp 2", *OBSERVES),
        # Here also seeds count, whichever server a request comes to and whatever else is there.
        _config(
            "dp2", "--dp 2 --enable-deterministic-inference --lz-loop-finish-reason stop", *CALLS
        ),
        _config("pp2", "--pp-size 2"),
        _config("dp-attention", _DP_ATTENTION, as_qwen3=True),
        _config(
            "dp-attention-eagle3",
            _DP_ATTENTION,
            *drafts("EAGLE3", 3, 2, 6),
            draft="eagle3",
            as_qwen3=True,
        ),
        _config(
            "dp-attention-dspark",
            f"{_DP_ATTENTION} --enable-dp-lm-head --speculative-algorithm DSPARK",
            draft="dspark",
            as_qwen3=True,
        ),
        _config(
            "adapters",
            "--enable-lora --lora-backend torch_native --max-lora-rank 4",
            "--lora-target-modules q_proj v_proj",
            "--enable-return-hidden-states --enable-custom-logit-processor",
            "--lz-loop-finish-reason length",
            *CALLS,
        ),
        _config("defaults", f"--preferred-sampling-params {_PREFERRED} --lz-max-window-size 24"),
        _config("reasoner", f"--model-path {REASONER_PATH} --max-running-requests 64"),
        _config("stock", env=(), stock=True),
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
