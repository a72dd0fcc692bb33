"""Check real servers on a GPU: one check a call, its result as JSON. Run by scripts/gpu-check.

The servers, the requests and the contract that they are held to are those of tests/server; what
happens inside of the servers is seen by scripts/gpu/site/sitecustomize.py. Nothing here needs more
than one GPU but `two-batch`.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "scripts" / "gpu" / "site"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
from bench.http_client import HTTP, lines  # noqa: E402
from server.client import OFF, Lz, Sample, base_rows, post, post_ok, streaming, to_sample  # noqa: E402
from server.client import request_body as body_of  # noqa: E402
from server.configurations import HOOKED, drafts  # noqa: E402
from server.contract import Case, change, deviations, row_deviation  # noqa: E402
from server.launch import Config, Server, serving  # noqa: E402
from server.prompts import mixed, repetitive, token_ids  # noqa: E402
from server.summary import TOLERANCE  # noqa: E402

GPU = (
    *("--device", "cuda", "--attention-backend", "triton", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-prefill-cuda-graph", "--mem-fraction-static", "0.5"),
    *("--dtype", "bfloat16"),  # upstream's own operators have no float32
)
GPU_ENVIRONMENT = (
    ("SGLANG_USE_CPU_ENGINE", "0"),
    # The other one is compiled for a newer torch than that of the machines and misreads tensors.
    ("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python"),
)
ALLOWED = "allowed, nats"
NOISE_FACTOR, NOISE_LIMIT = 4.0, 0.25
"""On a GPU logprobs may deviate so many times as much as those of requests without the penalty,
which differ between prefill and decode by the rounding of bfloat16, unless that is above the limit,
in nats."""
PAGES = ("--page-size", "16")
ADAPTIVE = {"1": {"candidate_steps": [3, 5]}, "2": {"candidate_steps": [1, 2]}}
"""Speculative steps by batch size: a request alone has other trees than several."""
MEMORY_SECONDS = WRITE_SECONDS = 300.0
READY = "The server is fired up and ready to roll!"
SENTENCE = re.compile(r"^.*\bLZ penalty\b.*--lz-max-window-size.*\.$", re.MULTILINE)
BURSTS = (1, 4, 16, 64, 256)
ROUNDS = 5
PREFILLS = ("plan", "apply", "stream")
"""What the watch times of a prefill."""


class CheckError(Exception):
    """A check failed; the message describes the finding in one sentence."""


@dataclass
class Run:
    """The outcome of some requests on one server.

    Attributes:
        samples: the answers, in the order of the requests.
        findings: the values to write into the result.
    """

    samples: list[Sample]
    findings: dict[str, Any] = field(default_factory=dict)


def configuration(
    name: str, flags: Sequence[str], watch: str, rehearse: bool, **options: Any
) -> Config:
    """A configuration of tests/server on the GPU, watched."""
    site = os.pathsep.join(filter(None, (str(SITE), str(HOOKED), os.environ.get("PYTHONPATH"))))
    env = [("PYTHONPATH", site), ("LZ_GPU_WATCH", watch)]
    if not rehearse:
        flags = [*GPU, *flags]
        env += GPU_ENVIRONMENT
    elif watch != "prefills":  # a timed server starts as it does for a user
        env += [("LZ_TEST_FORK", "1")]
    return Config(name, ("--decode-log-interval", "1", *flags), tuple(env), **options)


@contextmanager
def watched(
    name: str, flags: Sequence[str], watch: str, rehearse: bool, **options: Any
) -> Iterator[tuple[Server, Path]]:
    """A running server and the folder into which its watch writes."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as temporary:
        config = configuration(name, flags, watch, rehearse, **options)
        with serving(config, Path(temporary, "server.log")) as server:
            yield server, server.notes


def lines_of(folder: Path, name: str) -> list[Any]:
    """All lines that the processes of a server wrote under a name."""
    texts = [path.read_text() for path in sorted(folder.glob(f"*-{name}.jsonl"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def send(server: Server, case: Case, rid: str) -> Sample:
    """Send a request with its own id, by which the watch identifies it, and return the answer."""
    body = body_of(case.prompt, case.new_tokens, case.lz) | {"rid": rid}
    return to_sample(case.prompt, post_ok(server, "/generate", body))


def run_cases(
    server: Server, folder: Path, cases: Sequence[Case], rehearse: bool, ranks: int = 0
) -> Run:
    """Send greedy requests, the first alone and the others together; check each by the contract.

    Args:
        server: a running server.
        folder: the folder that its watch writes into.
        cases: the requests.
        rehearse: run on the CPU, in float32.
        ranks: how many processes record draft trees; if not 0, the trees are checked.

    Raises:
        CheckError: a logprob differs from the contract, the penalty of a node differs from the
            oracle, or a kernel was compiled while requests were running.
    """
    # The warm-up must have compiled everything before the first request with the penalty arrives.
    programs = lines_of(folder, "compiled")
    rids = [f"case {i}" for i in range(len(cases))]
    alone = send(server, cases[0], rids[0])
    with ThreadPoolExecutor(len(cases)) as pool:
        rest = list(pool.map(send, itertools.repeat(server), cases[1:], rids[1:]))
    samples = [alone, *rest]
    late = list((Counter(lines_of(folder, "compiled")) - Counter(programs)).elements())
    if late:
        raise CheckError(f"{len(late)} kernels were compiled while requests ran: {late[0]}")
    with_penalty, without = [0.0], [0.0]
    for case, sample in zip(cases, samples, strict=True):
        base = base_rows(server, sample.prompt, sample.outputs)
        (without if case.lz == OFF else with_penalty).append(max(deviations(sample, base, case.lz)))
    allowed = allowed_by(max(without), rehearse)
    if not max(with_penalty) <= allowed:
        raise CheckError(
            f"a logprob is {max(with_penalty):.3g} nats off the contract, {allowed:.3g} are allowed"
        )
    findings: dict[str, Any] = {}
    if ranks:
        collect_trees(server, folder, cases[0], ranks)
        known = dict(zip(rids, zip(cases, samples, strict=True), strict=True))
        findings = judge_trees(folder, known)
    return Run(
        samples,
        findings
        | {
            "positions": sum(len(sample.outputs) for sample in samples),
            "deviation, nats": max(with_penalty),
            "deviation without the penalty, nats": max(without),
            ALLOWED: allowed,
            "programs at the start": len(programs),
            "programs while serving": len(late),
        },
    )


def allowed_by(noise: float, rehearse: bool) -> float:
    """How far a logprob with the penalty may deviate from the contract, in nats.

    Args:
        noise: the deviation of logprobs without the penalty.
        rehearse: run on the CPU, where there is no allowance for noise.

    Raises:
        CheckError: the noise is too large for a meaningful check.
    """
    if noise > (TOLERANCE if rehearse else NOISE_LIMIT):
        raise CheckError(f"logprobs without the penalty differ by {noise:.3g} nats already")
    return TOLERANCE if rehearse else max(TOLERANCE, NOISE_FACTOR * noise)


def collect_trees(server: Server, folder: Path, case: Case, ranks: int) -> None:
    """Make every rank write the draft trees that it recorded, which it does on its next tree.

    Raises:
        CheckError: a rank has not done so within `WRITE_SECONDS`.
    """
    (folder / "write").touch()
    began = time.monotonic()
    while len(lines_of(folder, "written")) < ranks:
        if time.monotonic() - began > WRITE_SECONDS:
            raise CheckError(f"not all of {ranks} ranks wrote what they recorded")
        send(server, case, uuid.uuid4().hex)


def judge_trees(folder: Path, known: Mapping[str, tuple[Case, Sample]]) -> dict[str, Any]:
    """Compare the penalty of every recorded node with tests/oracle.py.

    Args:
        folder: the folder that the watch wrote into.
        known: the requests and their answers, by id.

    Raises:
        CheckError: a node's penalty differs.
    """
    nodes, worst, sizes = 0, 0.0, set()
    for line in lines_of(folder, "trees"):
        recorded = dict(np.load(folder / line["file"]))
        size = recorded["tokens"].shape[1]
        sizes.add(size)
        taken = recorded["after"].astype(np.float64) - recorded["before"]
        for row, rid in enumerate(line["requests"]):
            if rid not in known or not known[rid][0].lz.penalty:
                continue
            case, sample = known[rid]
            position = int(recorded["root"][row]) - len(sample.prompt)
            if position > len(sample.outputs):
                continue  # a step that ran ahead, of a request that had already ended
            outputs = sample.outputs[:position]
            root = int(recorded["tokens"][row][0])
            if position < len(sample.outputs) and root != sample.outputs[position]:
                raise CheckError(f"the tree of {rid} at output {position} has another root")
            links = (recorded[name][row].tolist() for name in ("first_child", "next_sibling"))
            for node, path in paths(*links).items():
                tokens = [int(recorded["tokens"][row][step]) for step in path]
                expected = change(sample.prompt, [*outputs, *tokens], case.lz)
                found = float(np.abs(taken[row * size + node] - expected).max())
                nodes, worst = nodes + 1, max(worst, found)
                if not found <= TOLERANCE:
                    raise CheckError(f"the penalty of node {node} of {rid} is {found:.3g} off")
    return {"nodes": nodes, "sizes of trees": sorted(sizes), "deviation of a node, nats": worst}


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


def compare(ours: Run, others: Run) -> dict[str, Any]:
    """Compare the greedy answers of two servers, up to where near ties make them diverge.

    Raises:
        CheckError: their logprobs differ by more than the combined tolerance of both, or they
            diverge without a tie.
    """
    tolerance = ours.findings[ALLOWED] + others.findings[ALLOWED]
    worst, same = 0.0, 0
    for number, (one, other) in enumerate(zip(ours.samples, others.samples, strict=True)):
        parted = None
        for i, (a, b) in enumerate(zip(one.outputs, other.outputs, strict=True)):
            worst = max(worst, row_deviation(one.rows[i], other.rows[i]))
            if a != b:
                parted = i
                if abs(one.rows[i][a] - one.rows[i][b]) > tolerance:
                    raise CheckError(f"answer {number} parts at token {i} without a near tie")
                break
        same += parted is None
        if not worst <= tolerance:
            raise CheckError(f"answer {number} differs by {worst:.3g} nats between the servers")
    return {"answers": len(ours.samples), "token for token": same, "difference, nats": worst}


def requests_of(seed: str, rehearse: bool) -> list[Case]:
    """Greedy requests, every third without the penalty, the first with it."""
    count, new_tokens = (4, 24) if rehearse else (12, 160)
    cases = mixed(random.Random(seed), count, 40, new_tokens)
    return [replace(case, temperature=0.0, favoured=()) for case in cases]


def speculation(shape: str, rehearse: bool, gpus: int) -> dict[str, Any]:
    """Compare speculation with and without overlap scheduling, and check both by the contract."""
    flags = {
        "dflash": ["--speculative-algorithm", "DFLASH", *PAGES],
        "dspark": ["--speculative-algorithm", "DSPARK", *PAGES],
        "chain": [*drafts("EAGLE", 3, 1, 4), *PAGES],
        # On a CPU, upstream supports trees only with pages of one token.
        "tree": [*drafts("EAGLE", 3, 3, 8), *([] if rehearse else PAGES)],
        "adaptive": [*drafts("EAGLE", 3, 1, 4), "--speculative-adaptive"],
    }[shape]
    if shape == "adaptive" and rehearse:  # upstream captures CUDA graphs for it
        flags += ["--disable-decode-cuda-graph"]
    flags += ["--tp", "2"] if gpus > 1 else []
    draft = shape if shape in ("dflash", "dspark") else "eagle"
    cases = requests_of(shape, rehearse)
    runs: dict[str, Run] = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as adaptive:
        json.dump(ADAPTIVE, adaptive)
        adaptive.flush()
        if shape == "adaptive":
            flags += ["--speculative-adaptive-config", adaptive.name]
        for name, more in (("overlap", []), ("no overlap", ["--disable-overlap-schedule"])):
            with watched(name, [*flags, *more], "trees", rehearse, draft=draft) as (server, seen):
                runs[name] = run_cases(server, seen, cases, rehearse, min(max(gpus, 1), 2))
                if not rehearse:
                    must_be_as_asked(server, overlap=name == "overlap")
                    must_compile(runs[name])
            drafted(runs[name])
            if shape == "adaptive" and len(runs[name].findings["sizes of trees"]) < 2:
                raise CheckError("the size of the draft trees never changed")
    return {
        **{name: run.findings for name, run in runs.items()},
        "against each other": compare(runs["overlap"], runs["no overlap"]),
    }


def must_be_as_asked(server: Server, *, overlap: bool) -> None:
    """Check that a server runs in the requested mode, because upstream may change it silently.

    Raises:
        CheckError: overlap scheduling or CUDA graphs are not in the expected state.
    """
    info = HTTP.get(f"{server.url}/server_info").json()
    if info["disable_overlap_schedule"] is overlap:
        raise CheckError(f"disable_overlap_schedule is {overlap}, which was not asked for")
    if "cuda graph: True" not in server.log():
        raise CheckError("no batch ran as a CUDA graph")


def must_compile(run: Run) -> None:
    """Check that counting compilations works at all.

    Raises:
        CheckError: none was seen when the server started.
    """
    if not run.findings["programs at the start"]:
        raise CheckError("no kernel was compiled at the start: the count says nothing")


def drafted(run: Run) -> None:
    """Record how many drafts were accepted.

    Raises:
        CheckError: none or all were accepted, or no node was recorded, so nothing was tested.
    """
    correct, proposed = (
        sum(sample.meta[f"spec_num_{name}_drafts"] for sample in run.samples)
        for name in ("correct", "proposed")
    )
    run.findings["drafts accepted"], run.findings["drafts proposed"] = correct, proposed
    if not 0 < correct < proposed:
        raise CheckError(f"{correct} of {proposed} drafts were accepted: the check saw nothing")
    if not run.findings["nodes"]:
        raise CheckError("no node of a draft tree was recorded")


def memory(rehearse: bool) -> dict[str, Any]:
    """Check that a server whose windows do not fit exits at start-up and says why."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as temporary:
        config = configuration("memory", [], "memory", rehearse)
        server = Server(config, Path(temporary, "server.log"))
        try:
            began = time.monotonic()
            while server.process.poll() is None and READY not in server.log():
                if time.monotonic() - began > MEMORY_SECONDS:
                    raise CheckError(f"the server still runs after {MEMORY_SECONDS:g} s")
                time.sleep(0.2)
        finally:
            server.stop()
        status = server.process.poll()
        assert status is not None  # `stop` has waited for it
        return judge_exhaustion(status, server.log())


def judge_exhaustion(status: int, log: str) -> dict[str, Any]:
    """Check that a server exited properly because it had no room for its windows.

    Args:
        status: its exit status.
        log: its output.

    Raises:
        CheckError: it served, or exited without a message that says what to change.
    """
    if status == 0 or READY in log:
        raise CheckError("the server started although its windows do not fit")
    found = SENTENCE.findall(log)
    if not found:
        last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
        raise CheckError(f"no sentence names the penalty and --lz-max-window-size; last: {last}")
    return {"exit status": status, "sentence": found[-1].strip()}


def burst(rehearse: bool) -> dict[str, Any]:
    """Measure bursts of prefills with and without the penalty, alone and beside running requests.

    This measures without checking anything. Each result is the median of some rounds, in seconds:

    - `wall`: from sending a burst to its answer;
    - `gap`: the longest wait for a token in a running stream in the meantime;
    - `plan`, `apply`: the penalty's time on the host, summed over all batches of the burst;
    - `stream`: its time on the device's stream; 0 on a CPU, which has none.
    """
    bursts, rounds, window = ((1, 4), 2, 64) if rehearse else (BURSTS, ROUNDS, 1024)
    running = 2 if rehearse else 8
    new_tokens = 1500  # longer than any burst; they are aborted after it
    rng = random.Random("bursts")
    rows = max(bursts) + running
    flags = ["--max-running-requests", str(rows), "--disable-radix-cache"]
    flags += ["--max-total-tokens", str(max(bursts) * (window + 16) + running * 2048)]
    results = []
    with watched("burst", flags, "prefills", rehearse) as (server, folder):
        for beside, count, penalty in itertools.product((0, running), bursts, (0.0, 0.15)):
            found = []
            for _ in range(rounds + 1):
                prompts = [repetitive(rng, window) for _ in range(count)]
                streams = [(token_ids(rng, 20), new_tokens)] * beside
                lz = Lz(penalty, window, 32, True)
                found.append(one_burst(server, folder, prompts, lz, streams))
            del found[0]  # upstream may compile kernels for a new size in it
            results.append(
                {"running": beside, "requests": count, "lz_penalty": penalty}
                | {key: statistics.median(each[key] for each in found) for key in found[0]}
            )
    return {"prompt, tokens": window, "rounds": rounds, "seconds": results}


def one_burst(
    server: Server,
    folder: Path,
    prompts: list[list[int]],
    lz: Lz,
    streams: Sequence[tuple[list[int], int]],
) -> dict[str, float]:
    """Send one burst while streams run; return the values that `burst` lists.

    `gap` is included only if there are streams.

    Args:
        server: a running server.
        folder: the folder that its watch writes into.
        prompts: the prompts of the burst.
        lz: the parameters of its requests.
        streams: the prompt and maximum tokens of each stream; they are aborted after the burst.
    """
    sampling = body_of([], 1, lz)["sampling_params"]
    rids = [uuid.uuid4().hex for _ in streams]
    with ThreadPoolExecutor(max(1, len(streams))) as pool:
        waiting = [
            pool.submit(arrivals, server, *stream, rid)
            for stream, rid in zip(streams, rids, strict=True)
        ]
        time.sleep(0.5 if streams else 0)  # until they are running
        let_it_write(server)
        seen = len(lines_of(folder, "prefills"))
        began = time.monotonic()
        post_ok(server, "/generate", {"input_ids": prompts, "sampling_params": sampling})
        ended = time.monotonic()
        for rid in rids:
            post(server, "/abort_request", {"rid": rid})
        times = [stream.result() for stream in waiting]
    let_it_write(server)
    lines = lines_of(folder, "prefills")[seen:]
    found = {"wall": ended - began}
    if streams:
        if any(each[-1] < ended for each in times):
            raise CheckError("a stream ended before the burst was answered: nothing was measured")
        during = [[began, *(t for t in each if began < t < ended), ended] for each in times]
        found["gap"] = max(b - a for each in during for a, b in itertools.pairwise(each))
    return found | {name: sum(line.get(name, 0.0) for line in lines) for name in PREFILLS}


def let_it_write(server: Server) -> None:
    """Run some steps without the penalty, because GPU prefill times become known only later."""
    post_ok(server, "/generate", {"text": "a", "sampling_params": {"max_new_tokens": 4}})


def arrivals(server: Server, prompt: Sequence[int], new_tokens: int, rid: str) -> list[float]:
    """The arrival time of each event of a stream with the penalty, by time.monotonic()."""
    sampling = body_of(prompt, new_tokens, Lz(0.15))["sampling_params"]
    body = {"rid": rid, "input_ids": list(prompt), "sampling_params": sampling}
    with streaming(server, body) as answer:
        return [time.monotonic() for line in lines(answer) if line.startswith(b"data: {")]


MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 4096,
    "moe_intermediate_size": 768,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "vocab_size": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""A small model of a kind that upstream splits into two batches; its weights are random."""


def two_batch(rehearse: bool, gpus: int) -> dict[str, Any]:
    """Compare servers with and without two-batch overlap, on requests with and without the penalty.

    Raises:
        CheckError: upstream's two-batch overlap cannot run here.
    """
    if rehearse:  # the demo model without overlap: everything but the splitting
        return _two_batch([], [], rehearse)
    if gpus < 2 or importlib.util.find_spec("deep_ep") is None:
        raise CheckError("two-batch overlap needs two GPUs and DeepEP (deep_ep)")
    flags = ["--tp", "2", "--dp", "2", "--enable-dp-attention", "--load-format", "dummy"]
    flags += ["--dtype", "bfloat16", "--moe-a2a-backend", "deepep", "--deepep-mode", "normal"]
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        Path(folder, "config.json").write_text(json.dumps(MOE))
        demo = ROOT / "python" / "sglang_lz" / "demo" / "model"
        for file in demo.glob("tokenizer*"):
            Path(folder, file.name).symlink_to(file)
        os.environ["LZ_TEST_MODEL"] = folder
        return _two_batch(flags, ["--enable-two-batch-overlap"], rehearse)


def _two_batch(flags: Sequence[str], more: Sequence[str], rehearse: bool) -> dict[str, Any]:
    cases = requests_of("two-batch", rehearse)
    runs = {}
    for name, added in (("two batches", more), ("one batch", [])):
        with watched(name, [*flags, *added], "splits", rehearse) as (server, folder):
            runs[name] = run_cases(server, folder, cases, rehearse)
            splits = len(lines_of(folder, "splits"))
        if added and not splits:  # upstream splits only what every rank can split
            raise CheckError("no batch with the penalty was split")
        runs[name].findings["split batches"] = splits
    return {
        **{name: run.findings for name, run in runs.items()},
        "against each other": compare(runs["two batches"], runs["one batch"]),
    }


def count_gpus() -> int:
    """How many GPUs torch can use."""
    import torch

    return torch.cuda.device_count()


CHECKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "chain": lambda rehearse: speculation("chain", rehearse, count_gpus()),
    "tree": lambda rehearse: speculation("tree", rehearse, count_gpus()),
    "adaptive": lambda rehearse: speculation("adaptive", rehearse, count_gpus()),
    "dflash": lambda rehearse: speculation("dflash", rehearse, count_gpus()),
    "dspark": lambda rehearse: speculation("dspark", rehearse, count_gpus()),
    "memory": memory,
    "burst": burst,
    "two-batch": lambda rehearse: two_batch(rehearse, count_gpus()),
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=CHECKS, help="what to check")
    parser.add_argument("--out", type=Path, required=True, help="the result, JSON")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU")
    given = parser.parse_args()
    # Exiting leaves the `with` blocks, which stops the servers when the time is up.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        result = CHECKS[given.check](given.rehearse)
    except (CheckError, AssertionError, RuntimeError) as error:
        sys.exit(f"{given.check}: {error}")
    given.out.write_text(json.dumps({"check": given.check} | result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
