"""Servers on a GPU over HTTP: every sampled position and every drafted node, by the oracle.

`scripts/test gpu` runs these. Named without it, they run on the CPU, where upstream has no CUDA
graphs and our kernels are numba's.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bench.http_client import HTTP
from device import DEVICE
from server.client import OFF, Sample, base_rows, post_ok, request_body, to_sample
from server.configurations import HOOKED, drafts
from server.contract import Case, change, deviations
from server.launch import Config, Server, serving
from server.prompts import mixed
from server.summary import SUMMARY, TOLERANCE

pytestmark = pytest.mark.gpu

ON_GPU = DEVICE != "cpu"
REQUESTS, NEW_TOKENS = (12, 160) if ON_GPU else (4, 24)
SITE = Path(__file__).with_name("site")
PATHS = (str(SITE), str(HOOKED), *filter(None, [os.environ.get("PYTHONPATH")]))
ENVIRONMENT = (
    ("PYTHONPATH", os.pathsep.join(PATHS)),
    *([("SGLANG_USE_CPU_ENGINE", "0")] if ON_GPU else []),
)
FLAGS = (
    *("--device", "cuda", "--attention-backend", "triton", "--sampling-backend", "pytorch"),
    *("--disable-prefill-cuda-graph", "--mem-fraction-static", "0.5"),
    *("--dtype", "bfloat16"),  # upstream's own operators have no float32
)
PAGES = ("--page-size", "16")
SHAPES = {
    "plain": (),
    "chain": (*drafts("EAGLE", 3, 1, 4), *PAGES),
    # On a CPU, upstream supports trees only with pages of one token.
    "tree": (*drafts("EAGLE", 3, 3, 8), *(PAGES if ON_GPU else ())),
    "adaptive": (*drafts("EAGLE", 3, 1, 4), "--speculative-adaptive"),
    "dflash": ("--speculative-algorithm", "DFLASH", *PAGES),
    "dspark": ("--speculative-algorithm", "DSPARK", *PAGES),
}
STEPS_BY_BATCH = {"1": {"candidate_steps": [3, 5]}, "2": {"candidate_steps": [1, 2]}}
"""Of adaptive speculation: a request alone has other trees than several."""
NOISE_FACTOR, NOISE_LIMIT = (4.0, 0.25) if ON_GPU else (0.0, TOLERANCE)
"""On a GPU logprobs may deviate so many times as much as those of requests without the penalty,
which differ between prefill and decode by the rounding of bfloat16, unless that is above the limit,
in nats."""
WRITE_SECONDS = 300.0


def send(server: Server, case: Case, rid: str) -> Sample:
    """Send a greedy request under an id, by which the watch names it."""
    body = request_body(case.prompt, case.new_tokens, case.lz) | {"rid": rid}
    return to_sample(case.prompt, post_ok(server, "/generate", body))


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_and_draft_nodes_are_the_oracles(shape: str, tmp_path: Path) -> None:
    """The first request alone, the others together; a third of them without the penalty."""
    flags = (*(FLAGS if ON_GPU else ()), "--decode-log-interval", "1", *SHAPES[shape])
    if shape == "adaptive":
        (tmp_path / "adaptive.json").write_text(json.dumps(STEPS_BY_BATCH))
        flags += ("--speculative-adaptive-config", str(tmp_path / "adaptive.json"))
        flags += () if ON_GPU else ("--disable-decode-cuda-graph",)
    draft = {"plain": None, "dflash": "dflash", "dspark": "dspark"}.get(shape, "eagle")
    drawn = mixed(random.Random(shape), REQUESTS, 40, NEW_TOKENS)
    cases = {f"case {i}": Case(c.prompt, c.new_tokens, c.lz) for i, c in enumerate(drawn)}
    config = Config(shape, flags, ENVIRONMENT, draft=draft)
    with serving(config, tmp_path / "server.log") as server:
        at_start = compiled(server.notes)
        first, *others = cases
        samples = {first: send(server, cases[first], first)}
        with ThreadPoolExecutor(len(others)) as pool:
            answers = pool.map(lambda rid: send(server, cases[rid], rid), others)
            samples |= zip(others, answers, strict=True)
        assert compiled(server.notes) == at_start, "a kernel was compiled while requests ran"
        if ON_GPU:
            assert at_start, "no kernel was compiled at the start: the comparison says nothing"
            assert not HTTP.get(f"{server.url}/server_info").json()["disable_overlap_schedule"]
            assert "cuda graph: True" in server.log()
        assert_contract(server, cases, samples)
        known = {rid: (case, samples[rid]) for rid, case in cases.items()}
        sizes = assert_nodes(steps(server, cases[first]), known)
    assert (len(sizes) > 1) == (shape == "adaptive")
    if draft:
        correct, proposed = (
            sum(sample.meta[f"spec_num_{name}_drafts"] for sample in samples.values())
            for name in ("correct", "proposed")
        )
        assert 0 < correct < proposed


def compiled(notes: Path) -> list[str]:
    """The kernels that the server's processes have compiled so far."""
    return [line for file in notes.glob("*-compiled") for line in file.read_text().splitlines()]


def steps(server: Server, case: Case) -> list[dict[str, np.ndarray]]:
    """What the watch recorded; it writes at its next step."""
    (server.notes / "write").touch()
    began = time.monotonic()
    while not list(server.notes.glob("*-written")):
        assert time.monotonic() - began < WRITE_SECONDS
        send(server, case, "to write")
    return [dict(np.load(file)) for file in sorted(server.notes.glob("*.npz"))]


def assert_contract(
    server: Server, cases: Mapping[str, Case], samples: Mapping[str, Sample]
) -> None:
    """Hold all samples to the contract, within the noise of those without the penalty."""
    found: dict[bool, list[float]] = {False: [0.0], True: [0.0]}
    for rid, case in cases.items():
        sample = samples[rid]
        base = base_rows(server, sample.prompt, sample.outputs)
        found[case.lz != OFF] += deviations(sample, base, case.lz)
    for is_on, worst in found.items():
        mode = f"{DEVICE} {server.config.name}, penalty {'on' if is_on else 'off'}"
        SUMMARY.record(mode, worst)
    noise = max(found[False])
    assert noise <= NOISE_LIMIT
    assert max(found[True]) <= max(TOLERANCE, NOISE_FACTOR * noise)


def assert_nodes(
    recorded: Sequence[Mapping[str, np.ndarray]], known: Mapping[str, tuple[Case, Sample]]
) -> set[int]:
    """Compare what the penalty did at every node with the oracle; return the sizes of the trees."""
    nodes = 0
    for step in recorded:
        size = step["tokens"].shape[1]
        taken = step["after"].astype(np.float64) - step["before"]
        for row, rid in enumerate(step["requests"].tolist()):
            if rid not in known or not known[rid][0].lz.penalty:
                continue
            case, sample = known[rid]
            position = int(step["root"][row]) - len(sample.prompt)
            if position >= len(sample.outputs):
                continue  # a step that ran ahead, of a request that had already ended
            assert step["tokens"][row][0] == sample.outputs[position], (rid, position)
            links = (step[name][row].tolist() for name in ("first_child", "next_sibling"))
            for node, path in paths(*links).items():
                drafted = step["tokens"][row][path].tolist()
                expected = change(sample.prompt, [*sample.outputs[:position], *drafted], case.lz)
                off = float(np.abs(taken[row * size + node] - expected).max())
                assert off <= TOLERANCE, (rid, position, node)
                nodes += 1
    assert nodes > 20
    return {step["tokens"].shape[1] for step in recorded}


def paths(first_child: Sequence[int], next_sibling: Sequence[int]) -> dict[int, list[int]]:
    """The path from the root, node 0, to every node of a draft tree, both inclusive."""
    found, waiting = {0: [0]}, [0]
    while waiting:
        parent = waiting.pop()
        child = first_child[parent]
        while child >= 0 and child not in found:
            found[child] = [*found[parent], child]
            waiting.append(child)
            child = next_sibling[child]
    return found
