"""Measure what the LZ penalty costs a server: the paper's table 1, on whatever is there.

`static` runs upstream's one-batch benchmark, which decodes a fixed batch without a server. `live`
starts a server (or takes --base-url) and runs upstream's serving benchmark at request rates. Both
tools get the penalty by the arguments of patches/bench/. Models are public architectures with dummy
weights, because the cost does not depend on what the tokens say; with --model-path they are real.

    python bench/serving.py static --out bench/results/serving-static.json
    python bench/serving.py live --out bench/results/serving-live.json
    python bench/serving.py plot bench/results/serving-static.json FILE.png    # needs matplotlib

Runs come in blocks of two pairs: off, on, on, off. A machine that slows down or speeds up steadily
favours neither, because both stand at the same place on average. A block gives one slowdown; the
result is the median of the blocks and its confidence interval. Finished blocks are kept beside the
result file (.jsonl), and the same command goes on after them. Without a GPU this is a smoke test:
the demo model's architecture at a small size, which shows that everything runs and nothing else.

Needs the Python that the patched sglang is installed for. Arguments after `--` go to sglang:
    python bench/serving.py static --tp 8 -- --attention-backend triton
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import ROOT, commit, compact_rows, machine, versions
from sglang_lz.params import FIELDS, LARGEST_MAX_WINDOW_SIZE, LZParams
from sglang_lz.upstream_benchmarks import add_arguments

CONFIDENCE = 0.95
# Input and output tokens of the paper's table.
PAPER_SIZES = (1024, 64)
# One block before those that count: what is compiled, captured or cached at first use.
WARM_UP_BLOCKS = 1
STARTUP_SECONDS = 1800.0
SHUTDOWN_SECONDS = 20.0
LOG_LINES = 40


@dataclass(frozen=True)
class Model:
    """An architecture of the table.

    Attributes:
        config: its config.json.
        batch_size: sequences of the static batch.
        paper: throughput lost in the paper, in per cent (arXiv 2504.20131, table 1, 8 x H100).
    """

    config: dict[str, Any]
    batch_size: int
    paper: float | None


@dataclass(frozen=True)
class Metric:
    """A field of upstream's result lines, and which way is worse.

    Attributes:
        key: upstream's name.
        title: what a slowdown in it is called.
        higher_is_better: whether a slowdown is a loss, or an increase.
    """

    key: str
    title: str
    higher_is_better: bool


METRICS = {
    "static": (
        Metric("overall_throughput", "throughput lost", True),
        Metric("median_decode_throughput", "decode throughput lost", True),
    ),
    "live": (
        Metric("output_throughput", "throughput lost", True),
        Metric("median_ttft_ms", "time to first token added", False),
        # The mean: a client that is late reads several tokens at once, most with no gap at all.
        Metric("mean_itl_ms", "inter-token latency added", False),
    ),
}


def _qwen2_5(**sizes: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "use_sliding_window": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "torch_dtype": "bfloat16",
        **sizes,
    }


def _demo() -> dict[str, Any]:
    config = ROOT / "python" / "sglang_lz" / "demo" / "model" / "config.json"
    # Upstream's one-batch tool draws its input ids below 10000.
    return {**json.loads(config.read_text()), "vocab_size": 10240}


MODELS = {
    "qwen2.5-1.5b": Model(
        _qwen2_5(
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
        batch_size=64,
        paper=0.55,
    ),
    "qwen2.5-7b": Model(
        _qwen2_5(
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152064,
            tie_word_embeddings=False,
        ),
        batch_size=32,
        paper=0.14,
    ),
    "qwen2.5-32b": Model(
        _qwen2_5(
            hidden_size=5120,
            intermediate_size=27648,
            num_hidden_layers=64,
            num_attention_heads=40,
            num_key_value_heads=8,
            vocab_size=152064,
            tie_word_embeddings=False,
        ),
        batch_size=8,
        paper=0.03,
    ),
    "demo": Model(_demo(), batch_size=4, paper=None),
}


# What a smoke test does instead, and the arguments that its server needs.
SMOKE = {
    "models": ["demo"],
    "input_len": 64,
    "output_len": 32,
    "rates": [4.0],
    "num_prompts": 16,
}
FULL = {
    "models": [name for name in MODELS if name != "demo"],
    "input_len": PAPER_SIZES[0],
    "output_len": PAPER_SIZES[1],
    "rates": [4.0, 16.0],
    "num_prompts": 128,
}
BLOCKS = {("static", True): 6, ("live", True): 6, ("static", False): 12, ("live", False): 6}
CPU_ARGUMENTS = [
    *("--device", "cpu", "--dtype", "float32"),
    *("--max-total-tokens", "8192", "--max-running-requests", "16"),
]

# Statistics


def order(penalty: float, blocks: int) -> list[float]:
    """The strengths of the runs of so many blocks: off, on, on, off in each."""
    return [0.0, penalty, penalty, 0.0] * blocks


def slowdown(runs: list[dict[str, Any]], metric: Metric) -> float:
    """What a block lost or added in a metric, in per cent; negative if the penalty was faster.

    Args:
        runs: the result lines of the block.
    """
    off = sum(run[metric.key] for run in runs if run["lz_penalty"] == 0)
    on = sum(run[metric.key] for run in runs if run["lz_penalty"] > 0)
    return 100 * (1 - on / off if metric.higher_is_better else on / off - 1)


def median_interval(values: list[float], confidence: float = CONFIDENCE) -> list[float] | None:
    """The confidence interval of the median between two order statistics.

    It assumes independent values and nothing of their distribution: the number of values below the
    true median is binomial with 1/2. None if there are too few, fewer than 6 for 95 %.
    """
    count, tail = len(values), 0.0
    for outside in range(count // 2 + 1):
        tail += math.comb(count, outside) / 2**count
        if tail > (1 - confidence) / 2:
            break
    ordered = sorted(values)
    return [ordered[outside - 1], ordered[count - outside]] if outside else None


def summary(blocks: list[list[dict[str, Any]]], metrics: tuple[Metric, ...]) -> dict[str, Any]:
    """Of each metric: its median off and on, the median slowdown in per cent and its interval."""
    runs = [run for block in blocks for run in block]
    found = {}
    for metric in metrics:
        losses = [slowdown(block, metric) for block in blocks]
        interval = median_interval(losses)
        found[metric.key] = {
            "slowdown": metric.title,
            "off": statistics.median(r[metric.key] for r in runs if r["lz_penalty"] == 0),
            "on": statistics.median(r[metric.key] for r in runs if r["lz_penalty"] > 0),
            "percent": round(statistics.median(losses), 4),
            "interval": interval and [round(end, 4) for end in interval],
        }
    return found


# What is finished, on disk


class Record:
    """The finished blocks of a measurement, so that it can be interrupted and taken up again."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Read `path` if it is there, else begin it.

        Args:
            path: JSON lines: the settings, then one block a line.
            settings: everything that two runs must share to be compared.

        Raises:
            SystemExit: the file was measured with other settings.
        """
        self.path = path
        self.blocks: dict[str, list[list[dict[str, Any]]]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith("\n"):  # ended in the middle of a write
            path.write_text("".join(lines[:-1]))
            lines.pop()
        if not lines:
            self._append(settings)
            return
        before = json.loads(lines[0])
        settings = json.loads(json.dumps(settings))
        changed = [name for name in before | settings if before.get(name) != settings.get(name)]
        if changed:
            shown = "; ".join(f"{n}: {before.get(n)} then, {settings.get(n)} now" for n in changed)
            raise SystemExit(
                f"{path} was measured with other settings ({shown}). Remove it to begin anew, or "
                "give another --out."
            )
        for line in lines[1:]:
            block = json.loads(line)
            self.blocks.setdefault(block["row"], []).append(block["runs"])

    def finished(self, row: str) -> list[list[dict[str, Any]]]:
        """The blocks of a row of the table, in order."""
        return self.blocks.setdefault(row, [])

    def add(self, row: str, runs: list[dict[str, Any]]) -> None:
        """Keep a finished block; it is on disk when this returns."""
        self.finished(row).append(runs)
        self._append({"row": row, "runs": runs})

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


# Running upstream's tools


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which ends with the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SHUTDOWN_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def failure(what: str, log: Path) -> SystemExit:
    """A sentence and the end of what the process wrote."""
    tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return SystemExit("\n".join([*tail, f"{what}; the lines above are the end of its output."]))


def write_model(config: dict[str, Any], folder: Path) -> None:
    """Write what upstream needs of a model with dummy weights: its config and a tokenizer.

    Its tokens are the bytes, then one for each other id: every id decodes to some text, without
    which upstream's client counts no token.
    """
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tokens = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"<{token}>" for token in range(len(tokens), config["vocab_size"])]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def model_arguments(name: str, arguments: argparse.Namespace, work: Path) -> list[str]:
    """The server arguments that name a model: the given one, or dummy weights."""
    if name in arguments.model_path:
        return ["--model-path", arguments.model_path[name]]
    folder = work / name
    if not folder.exists():
        write_model(MODELS[name].config, folder)
    return ["--model-path", str(folder), "--load-format", "dummy"]


def sglang_arguments(arguments: argparse.Namespace) -> list[str]:
    """What every process of sglang gets; the user's arguments win."""
    machine = [] if torch_facts()["gpus"] else CPU_ARGUMENTS
    return [*machine, "--tp-size", str(arguments.tp), *arguments.sglang]


def penalty_arguments(fields: dict[str, Any], *strengths: float) -> list[str]:
    """The `--lz-*` arguments of upstream's patched tools."""
    others = [
        part
        for name, value in fields.items()
        if name != "lz_penalty"
        for part in ([_flag(name)] if value is True else [_flag(name), str(value)])
    ]
    return ["--lz-penalty", *map(str, strengths), *others]


def measure_static(
    name: str, arguments: argparse.Namespace, record: Record, work: Path, progress: Any
) -> None:
    """Add the missing blocks of a model to the record, all by one process of one_batch."""
    batch_size = arguments.batch_size or MODELS[name].batch_size
    row = f"{name}, batch {batch_size}"
    missing = arguments.blocks - len(record.finished(row))
    if missing <= 0:
        return
    results, log = work / f"{name}.jsonl", work / f"{name}.log"
    strengths = order(arguments.fields["lz_penalty"], WARM_UP_BLOCKS + missing)
    command = [
        *(sys.executable, "-m", "sglang.benchmark.one_batch"),
        *model_arguments(name, arguments, work),
        *("--batch-size", str(batch_size), "--input-len", str(arguments.input_len)),
        *("--output-len", str(arguments.output_len), "--result-filename", str(results)),
        *penalty_arguments(arguments.fields, *strengths),
        *sglang_arguments(arguments),
    ]
    done: list[dict[str, Any]] = []
    with running(command, log) as process:
        while len(done) < len(strengths):
            ended = process.poll() is not None
            lines = results.read_text().split("\n")[:-1] if results.exists() else []
            for line in lines[len(done) :]:
                run = json.loads(line)
                if run["lz_penalty"] != strengths[len(done)]:
                    raise failure(f"{name}: one_batch ran its penalties in another order", log)
                done.append(run)
                if len(done) > 4 * WARM_UP_BLOCKS:
                    progress.update()
                    if len(done) % 4 == 0:
                        record.add(row, done[-4:])
            if ended and len(done) < len(strengths):
                raise failure(f"{name}: one_batch ended after {len(done)} runs", log)
            time.sleep(0.2)


@contextlib.contextmanager
def server(name: str, arguments: argparse.Namespace, work: Path) -> Iterator[str]:
    """The address of a server of this model: the given one, or one that ends with the block."""
    if arguments.base_url:
        yield arguments.base_url
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log, url = work / f"{name}-server.log", f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1"),
        *("--port", str(port), *model_arguments(name, arguments, work)),
        *sglang_arguments(arguments),
    ]
    with running(command, log) as process:
        deadline = time.monotonic() + STARTUP_SECONDS
        while not _answers(f"{url}/health_generate"):
            if process.poll() is not None:
                raise failure(f"{name}: the server ended with {process.returncode}", log)
            if time.monotonic() > deadline:
                raise failure(f"{name}: no server after {STARTUP_SECONDS:.0f} s", log)
            time.sleep(0.5)
        yield url


def measure_live(
    name: str, arguments: argparse.Namespace, record: Record, work: Path, progress: Any
) -> None:
    """Add the missing blocks of a model at every request rate, all by one server."""
    rows = {f"{name}, {rate:g} requests/s": rate for rate in arguments.rates}
    if all(len(record.finished(row)) >= arguments.blocks for row in rows):
        return
    penalty = arguments.fields["lz_penalty"]
    with server(name, arguments, work) as url:
        for row, rate in rows.items():
            if len(record.finished(row)) < arguments.blocks:
                for strength in (0.0, penalty):
                    run_client(url, arguments, work, rate=rate, strength=strength, seed=0)
            while len(record.finished(row)) < arguments.blocks:
                # The same requests, arriving at the same times, in all runs of a block.
                seed = 1 + len(record.finished(row))
                runs = []
                for strength in order(penalty, 1):
                    run = run_client(url, arguments, work, rate=rate, strength=strength, seed=seed)
                    runs.append(run)
                    progress.update()
                record.add(row, runs)


def run_client(
    url: str,
    arguments: argparse.Namespace,
    work: Path,
    *,
    rate: float,
    strength: float,
    seed: int,
) -> dict[str, Any]:
    """Run upstream's serving benchmark once and return the figures of its result line.

    In this process, because to import it takes longer than a run.
    """
    from sglang.benchmark import serving

    results, log = work / "client.jsonl", work / "client.log"
    results.unlink(missing_ok=True)
    own = sys.argv
    sys.argv = [
        *("serving", "--backend", "sglang", "--base-url", url),
        *("--dataset-name", "random-ids", "--tokenize-prompt"),
        *("--random-input-len", str(arguments.input_len)),
        *("--random-output-len", str(arguments.output_len), "--random-range-ratio", "1.0"),
        *("--num-prompts", str(arguments.num_prompts), "--request-rate", str(rate)),
        *("--seed", str(seed), "--flush-cache", "--disable-tqdm", "--output-file", str(results)),
        *penalty_arguments(arguments.fields, strength),
    ]
    with log.open("w") as output:
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                serving.cli_main()
        except (Exception, SystemExit) as error:
            print(f"{type(error).__name__}: {error}", file=output)
        finally:
            sys.argv = own
    line = json.loads(results.read_text()) if results.exists() else {"completed": 0}
    if line["completed"] != arguments.num_prompts:
        raise failure(f"{line['completed']} of {arguments.num_prompts} requests succeeded", log)
    if line["lz_penalty"] != strength:
        raise failure(f"the client sent lz_penalty {line['lz_penalty']}, not {strength}", log)
    kept = ("lz_penalty", "duration", "total_output_tokens", "output_throughput")
    times = (f"{which}_{of}_ms" for which in ("mean", "median", "p99") for of in ("ttft", "itl"))
    return {name: line[name] for name in (*kept, *times)}


# What it was measured on


@functools.cache
def torch_facts() -> dict[str, Any]:
    """What torch says of itself and the GPUs, asked in a process whose GPU memory goes with it."""
    script = (
        "import json, torch; cuda = torch.cuda; "
        "gpus = [cuda.get_device_name(i) for i in range(cuda.device_count())]; "
        "print(json.dumps(dict(torch=torch.__version__, cuda=torch.version.cuda, gpus=gpus)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    facts: dict[str, Any] = json.loads(answer.stdout)
    return facts


def environment() -> dict[str, Any]:
    """The machine and the versions."""
    return {
        **machine(),
        **torch_facts(),
        **versions("triton", "sglang"),
        "commit": commit(),
    }


# The result


def result_of(
    arguments: argparse.Namespace, record: Record, settings: dict[str, Any]
) -> dict[str, Any]:
    """The result file: where and how it was measured, the table, and every run."""
    metrics = METRICS[arguments.mode]
    table = {}
    for row, blocks in record.blocks.items():
        if blocks:
            table[row] = {
                "paper_percent": paper_percent(row, arguments),
                "blocks": len(blocks),
                **summary(blocks, metrics),
                "runs": [[run[m.key] for run in block for m in metrics] for block in blocks],
            }
    return {
        "measures": (
            "what the LZ penalty costs, in per cent, the median of blocks of runs (off, on, on, "
            "off) and the interval of the median; paper_percent is the throughput lost in arXiv "
            "2504.20131, table 1, on 8 x H100"
        ),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", *sys.argv]),
        "confidence": CONFIDENCE,
        **settings,
        "run_columns": [f"{m.key} {when}" for when in ("off", "on", "on", "off") for m in metrics],
        "table": table,
    }


def paper_percent(row: str, arguments: argparse.Namespace) -> float | None:
    """The throughput lost in the paper, in per cent, if it measured what this row does."""
    name, _, load = row.partition(", ")
    sizes = (arguments.input_len, arguments.output_len)
    if name not in MODELS or load != f"batch {MODELS[name].batch_size}" or sizes != PAPER_SIZES:
        return None
    return MODELS[name].paper


def markdown(result: dict[str, Any]) -> str:
    """The result as a table for a README."""
    keys = [metric.key for metric in METRICS[result["mode"]]]
    first = next(iter(result["table"].values()))
    titles = [f"{first[key]['slowdown']} (95 % interval)" for key in keys]
    paper = result["mode"] == "static"
    head = ["row", "blocks", *titles, *(["throughput lost in the paper"] if paper else [])]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in result["table"].items():
        cells = [name, str(row["blocks"]), *(_cell(row[key]) for key in keys)]
        if paper:
            cells.append("-" if row["paper_percent"] is None else f"{row['paper_percent']} %")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: dict[str, Any]) -> str:
    interval = found["interval"]
    ends = f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "too few blocks"
    return f"{found['percent']:.2f} % ({ends})"


def smoke_words(result: dict[str, Any]) -> str:
    """What a smoke test must say of itself; empty for a measurement."""
    if not result["smoke"]:
        return ""
    return "Smoke test: it shows that the benchmark runs, not what the penalty costs on a GPU."


def plot(result: dict[str, Any], out: Path) -> None:
    """Draw the slowdowns of a result file with their intervals, and the paper's."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    table = result["table"]
    metrics = METRICS[result["mode"]]
    figure, axes = plt.subplots(figsize=(8, 1.8 + 0.6 * len(table)), constrained_layout=True)
    colours = ("#3b6ea5", "#c2693d", "#6b9e5b")
    for i, (metric, colour) in enumerate(zip(metrics, colours, strict=False)):
        for j, row in enumerate(table.values()):
            found = row[metric.key]
            low, high = found["interval"] or (found["percent"],) * 2
            axes.errorbar(
                found["percent"],
                j + 0.2 * (i - (len(metrics) - 1) / 2),
                xerr=[[found["percent"] - low], [high - found["percent"]]],
                fmt="o",
                capsize=4,
                color=colour,
                label=metric.title if j == 0 else None,
            )
    marks = [(row["paper_percent"], j) for j, row in enumerate(table.values())]
    marks = [mark for mark in marks if mark[0] is not None]
    if marks:
        values, places = zip(*marks, strict=True)
        axes.plot(values, places, "kD", mfc="none", label="throughput lost in the paper, 8 x H100")
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(table)), list(table))
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_xlabel("slowdown by the penalty, per cent; median and 95 % interval")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    where = f"{len(result['gpus'])} x {result['gpus'][0]}" if result["gpus"] else result["cpu"]
    title = f"lz_penalty {result['lz']['lz_penalty']}, {result['mode']}, {where}"
    figure.suptitle("\n".join(filter(None, [title, smoke_words(result)])), fontsize=9)
    figure.savefig(out, dpi=160)


# The command line


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line, and fill in what depends on whether it is a smoke test."""
    end = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    static = modes.add_parser("static", help="a fixed batch, without a server")
    live = modes.add_parser("live", help="a server at request rates")
    drawing = modes.add_parser("plot", help="draw a result file")
    for page in (static, live):
        page.add_argument("--out", type=Path, required=True, help="JSON file to write")
        page.add_argument("--smoke", action="store_true", help="the smoke test, even with a GPU")
        page.add_argument("--models", nargs="+", choices=MODELS, help="default: all but demo")
        page.add_argument(
            "--model-path", nargs="+", default=[], metavar="NAME=PATH", help="real weights"
        )
        page.add_argument("--tp", type=int, default=1, help="tensor parallel (default: 1)")
        page.add_argument("--blocks", type=int, help="of four runs (default: 12; live: 6)")
        page.add_argument("--input-len", type=int, help="tokens (default: 1024)")
        page.add_argument("--output-len", type=int, help="tokens (default: 64)")
        add_arguments(page, default=0.15)
    static.add_argument("--batch-size", type=int, help="of every model (default: the paper's)")
    live.add_argument("--base-url", help="a server that runs on this machine already")
    live.add_argument(
        "--rates", type=float, nargs="+", help="requests/s, inf for all at once (default: 4 16)"
    )
    live.add_argument("--num-prompts", type=int, help="requests in a run (default: 128)")
    drawing.add_argument("result", type=Path)
    drawing.add_argument("out", type=Path)
    arguments = parser.parse_args(argv[:end])
    if arguments.mode == "plot":
        return arguments

    arguments.sglang = argv[end + 1 :]
    arguments.smoke = arguments.smoke or not torch_facts()["gpus"]
    for name, value in (SMOKE if arguments.smoke else FULL).items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
    if arguments.blocks is None:
        arguments.blocks = BLOCKS[arguments.mode, arguments.smoke]
    fields = {name: value for name in FIELDS if (value := getattr(arguments, name)) is not None}
    try:
        LZParams.parse(fields, LARGEST_MAX_WINDOW_SIZE)
    except ValueError as error:
        parser.error(str(error))
    if not fields["lz_penalty"]:
        parser.error("--lz-penalty must be above 0: it is compared with 0.")
    arguments.fields = fields
    if arguments.out.suffix == ".jsonl":
        parser.error("--out: the finished blocks beside it are the .jsonl; take .json.")
    for name in ("tp", "blocks", "input_len", "output_len", "batch_size", "num_prompts"):
        value = getattr(arguments, name, None)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
    for rate in getattr(arguments, "rates", []):
        if not rate > 0:
            parser.error(f"--rates must be above 0, got {rate:g}.")
    if any("=" not in part for part in arguments.model_path):
        parser.error("--model-path must be NAME=PATH.")
    arguments.model_path = dict(part.partition("=")[::2] for part in arguments.model_path)
    unknown = set(arguments.model_path) - set(arguments.models)
    if unknown:
        parser.error(f"--model-path: {', '.join(sorted(unknown))} is not one of --models.")
    if getattr(arguments, "base_url", None):
        if arguments.sglang or arguments.model_path or arguments.tp != 1:
            parser.error(
                "--base-url: --tp, --model-path and arguments after -- are for a server that is "
                "started here."
            )
        arguments.models = ["server"]
    return arguments


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that all runs of a result file share."""
    names = {
        "static": ("input_len", "output_len", "batch_size"),
        "live": ("input_len", "output_len", "num_prompts", "base_url"),
    }
    started = {
        "tp": arguments.tp,
        "model_path": arguments.model_path,
        "sglang_arguments": sglang_arguments(arguments),
    }
    return {
        "mode": arguments.mode,
        "smoke": arguments.smoke,
        **environment(),
        "lz": arguments.fields,
        **({} if getattr(arguments, "base_url", None) else started),
        **{name: getattr(arguments, name) for name in names[arguments.mode]},
    }


def main() -> None:
    """Run the command line."""
    arguments = parse(sys.argv[1:])
    if arguments.mode == "plot":
        plot(json.loads(arguments.result.read_text()), arguments.out)
        return
    from tqdm import tqdm

    # As Ctrl-C: what was started here must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.smoke:  # a model so small that threads only wait on each other
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = settings_of(arguments)
    record = Record(arguments.out.with_suffix(".jsonl"), settings)
    measure = {"static": measure_static, "live": measure_live}[arguments.mode]
    rows = len(arguments.models) * len(getattr(arguments, "rates", [0]))
    finished = 4 * sum(map(len, record.blocks.values()))
    with (
        tempfile.TemporaryDirectory(prefix="serving-") as work,
        tqdm(total=4 * arguments.blocks * rows, initial=finished, unit="run") as progress,
    ):
        for name in arguments.models:
            progress.set_description(name)
            measure(name, arguments, record, Path(work), progress)
    result = result_of(arguments, record, settings)
    arguments.out.write_text(compact_rows(json.dumps(result, indent=1)))
    print("\n".join(filter(None, [smoke_words(result), markdown(result)])))


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(url, timeout=10).close()
        return True
    return False


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


if __name__ == "__main__":
    main()
