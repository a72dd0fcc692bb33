"""The runs, each with and without the penalty."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.http_client import answers
from bench.processes import Background, ProcessError, free_port, tail_of
from bench.serving import hardware
from bench.serving.models import model_of, write_model
from bench.serving.record import Record
from bench.serving.slowdowns import order

# One block before those that count: what is compiled, captured or cached at first use.
WARM_UP_BLOCKS = 1
STARTUP_SECONDS = 1800.0
SHUTDOWN_SECONDS = 20.0
CPU_ARGUMENTS = [
    *("--device", "cpu", "--dtype", "float32"),
    *("--max-total-tokens", "8192", "--max-running-requests", "64"),
]


def model_arguments(name: str, arguments: argparse.Namespace, work: Path) -> list[str]:
    """The server arguments for a model, the given one or one with dummy weights."""
    model = model_of(name, arguments.model_path)
    tp = ["--tp-size", str(model.tp(arguments.tp))]
    if name in arguments.model_path:
        return ["--model-path", arguments.model_path[name], *tp]
    folder = work / name
    if not folder.exists():
        write_model(model.config, folder)
    return ["--model-path", str(folder), "--load-format", "dummy", *tp]


def sglang_arguments(arguments: argparse.Namespace) -> list[str]:
    """The arguments of every process of sglang; the user's own come last, so they win."""
    of_machine = [] if hardware.torch_facts()["gpus"] else CPU_ARGUMENTS
    return [*of_machine, *arguments.sglang]


def batch_sizes(name: str, arguments: argparse.Namespace) -> list[int]:
    """The batches of `static` for a model."""
    return arguments.batch_size or [model_of(name, arguments.model_path).batch_size]


def measure_static(
    name: str, arguments: argparse.Namespace, record: Record, work: Path, progress: Any
) -> None:
    """Add the missing blocks of a model to the record, by one process for each batch size.

    Raises:
        ProcessError: it ended early.
    """
    for batch_size in batch_sizes(name, arguments):
        load = f"{name}, batch {batch_size}"
        rows = {f"{load}, {words}" if words else load: v for words, v in arguments.variants.items()}
        missing = arguments.blocks - min(len(record.finished(row)) for row in rows)
        if missing <= 0:
            continue
        blocks, results = WARM_UP_BLOCKS + missing, work / f"{load}.jsonl"
        settings = {
            "variants": [{}, *rows.values()],
            "sizes": {
                "batch_size": batch_size,
                "input_len": arguments.input_len,
                "output_len": arguments.output_len,
            },
            "blocks": blocks,
            "results": str(results),
        }
        command = [
            *(sys.executable, "-m", "bench.serving.turns", json.dumps(settings)),
            *model_arguments(name, arguments, work),
            *sglang_arguments(arguments),
        ]
        log, size = results.with_suffix(".log"), 2 * (1 + len(rows))
        with Background(command, name=load, log=log, grace=SHUTDOWN_SECONDS) as tool:
            lines = _lines_of(tool, results, size * blocks)
            for number in range(blocks):
                block = list(itertools.islice(lines, size))
                if number < WARM_UP_BLOCKS:
                    continue
                for place, row in enumerate(rows, 1):
                    record.add(row, [block[i] for i in (0, place, -1 - place, -1)])
                    progress.update()


def _lines_of(tool: Background, results: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yield the first `count` lines that a process writes into a file, as they come."""
    done = 0
    while done < count:
        has_ended = tool.poll() is not None
        lines = results.read_text().split("\n")[:-1] if results.exists() else []
        for line in lines[done:count]:
            yield json.loads(line)
        done = len(lines)
        if has_ended and done < count:
            raise tool.error(f"{tool.name} ended after {done} runs")
        time.sleep(0.2)


@contextlib.contextmanager
def server(name: str, arguments: argparse.Namespace, work: Path) -> Iterator[str]:
    """The address of a server of this model: the given one, or one that ends with the block.

    Raises:
        ProcessError: the server ended, or did not start in time.
    """
    if arguments.base_url:
        yield arguments.base_url
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1"),
        *("--port", str(port), *model_arguments(name, arguments, work)),
        *sglang_arguments(arguments),
    ]
    log = work / f"{name}-server.log"
    title = f"the server of {name}"
    with Background(command, name=title, log=log, grace=SHUTDOWN_SECONDS) as process:
        process.wait_until(lambda: answers(f"{url}/health_generate"), STARTUP_SECONDS)
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
                for strength in order([0.0, penalty]):
                    run = run_client(url, arguments, work, rate=rate, strength=strength, seed=seed)
                    runs.append(run)
                record.add(row, runs)
                progress.update()


def run_client(
    url: str, arguments: argparse.Namespace, work: Path, *, rate: float, strength: float, seed: int
) -> dict[str, Any]:
    """Run upstream's serving benchmark once and return the figures of its result line.

    In this process, because to import it takes longer than a run.
    """
    from sglang.benchmark import serving

    results, log = work / "client.jsonl", work / "client.log"
    results.unlink(missing_ok=True)
    sampling = {"temperature": 0, "max_new_tokens": arguments.output_len, "ignore_eos": True}
    # These take the place of all sampling parameters that the tool would send.
    body = {"sampling_params": sampling | arguments.fields | {"lz_penalty": strength}}
    own = sys.argv
    sys.argv = [
        *("serving", "--backend", "sglang", "--base-url", url),
        *("--dataset-name", "random-ids", "--tokenize-prompt"),
        *("--random-input-len", str(arguments.input_len)),
        *("--random-output-len", str(arguments.output_len), "--random-range-ratio", "1.0"),
        *("--num-prompts", str(arguments.num_prompts), "--request-rate", str(rate)),
        *("--seed", str(seed), "--flush-cache", "--disable-tqdm", "--output-file", str(results)),
        *("--extra-request-body", json.dumps(body)),
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
        problem = f"{line['completed']} of {arguments.num_prompts} requests succeeded"
        raise ProcessError(f"{problem}\n{tail_of(log)}")
    kept = ("duration", "total_output_tokens", "output_throughput")
    times = (f"{which}_{of}_ms" for which in ("mean", "median", "p99") for of in ("ttft", "itl"))
    return {"lz_penalty": strength} | {name: line[name] for name in (*kept, *times)}


MEASURE: dict[str, Callable[[str, argparse.Namespace, Record, Path, Any], None]] = {
    "static": measure_static,
    "live": measure_live,
}
"""How the missing blocks of a model are measured in each mode."""
