"""Modes that are refused, as upstream itself resolves their flags; and those that are served."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("modes"),  # one process resolves the flags for all of them
]

REFUSED = [
    ("--speculative-algorithm NGRAM --speculative-accept-threshold-acc 0.9", "not lossless"),
    ("--tp 2 --attn-cp-size 2", "context parallelism"),
    ("--tp 2 --dcp-size 2", "context parallelism"),
    ("--enable-pdmux", "prefill/decode multiplexing"),
]
DP_ATTENTION = "--tp 2 --dp 2 --enable-dp-attention"
# Upstream itself does not start with these on a CPU, so nothing can be shown of them.
NOT_STARTED = [
    f"{DP_ATTENTION} --speculative-algorithm {algorithm}"
    for algorithm in ("NGRAM", "STANDALONE", "DFLASH")
]
SERVED = [
    *("", "--tp 2", "--dp 2", "--page-size 16", "--disable-overlap-schedule"),
    *("--speculative-algorithm NGRAM", "--speculative-algorithm NGRAM --tp 2"),
    *("--tp 2 --attn-dp-size 2", DP_ATTENTION, "--pp-size 2"),
    *("--disaggregation-mode prefill", "--disaggregation-mode decode"),
]


@pytest.fixture(scope="module")
def answers(model_path: str) -> dict[str, str | None]:
    """What `admit` says of a penalty under each list of flags."""
    lines = [*SERVED, *NOT_STARTED, *(line for line, _ in REFUSED)]
    flags = [line.split() for line in lines]
    script = Path(__file__).with_name("resolve_modes.py")
    result = subprocess.run(
        [sys.executable, str(script), model_path, json.dumps(flags)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("[[")]
    return {" ".join(given): answer for given, answer in map(json.loads, lines)}


@pytest.mark.parametrize(("flags", "why"), REFUSED)
def test_an_unsupported_mode_refuses(answers: dict[str, str | None], flags: str, why: str) -> None:
    answer = answers[flags]
    assert answer is not None
    assert answer.startswith("lz_penalty must be 0 with")
    assert why in answer


@pytest.mark.parametrize("flags", NOT_STARTED)
def test_upstream_refuses_these_modes_under_data_parallel_attention(
    answers: dict[str, str | None], flags: str
) -> None:
    answer = answers[flags]
    assert answer is not None
    assert answer.startswith("upstream: ")
    assert "dp attention" in answer


@pytest.mark.parametrize("flags", SERVED)
def test_a_supported_mode_admits(answers: dict[str, str | None], flags: str) -> None:
    assert answers[flags] is None
