"""Measure degenerate repetition and accuracy, over temperatures and penalties.

Sends the problems of a task to an OpenAI-compatible endpoint under every penalty, at every
temperature, with every seed, and reports how many outputs fall into a loop and how many answers are
right, as figures 2, 3 and 4 of the paper do (arXiv 2504.20131).

    python -m bench.models run --serve pocket --task pocket --out DIR
    python -m bench.models run --base-url http://127.0.0.1:30000 --out DIR \\
        --task jsonl=FILE --penalty none --penalty lz_penalty=0.15,lz_onset=3 \\
        --penalty repetition_penalty=1.2,frequency_penalty=0.2 --temperature 0 0.6 1
    python -m bench.models report DIR

`COMMAND --help` is the manual. However a `run` was stopped, the same command continues it: no
finished sample is lost and none is asked for twice. DIR holds run.json (settings, machine,
server), items.jsonl, samples.jsonl (the raw outputs), result.json (the scores) and the plot.

An output is degenerate if some unit of its token ids stands at least 20 times in a row
(`detector.py`, the paper's definition), or of its characters if the endpoint returns no token ids.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import command, commit, environment, versions
from bench.models import charts, grid, run_directory, sampling, tables, tasks
from bench.models import endpoint as endpoints
from bench.models.arguments import parse
from bench.models.endpoint import EndpointError
from bench.models.inprocess import InProcess
from bench.models.items import Item, digest
from bench.models.result import write_result
from bench.models.sandbox import SandboxError
from bench.models.server import serving
from bench.processes import ProcessError
from bench.records import RecordError

PENALTIES = ["none", "lz_penalty=0.15,lz_cost=marginal", "lz_penalty=0.15,lz_cost=rate"]


def run_command(arguments: argparse.Namespace) -> None:
    """Sample what is missing, then score and plot."""
    items = _items(arguments)
    wanted = _grid(arguments)
    if arguments.in_process is not None:
        sample_in_process(arguments, items, wanted)
    elif arguments.serve is None:
        if arguments.serve_arg:
            raise ValueError("--serve-arg goes with --serve.")
        sample(arguments, items, wanted, arguments.base_url)
    else:
        log = arguments.out / "server.log"
        print(f"starting a server of {arguments.serve}; its output: {log}", file=sys.stderr)
        with serving(arguments.serve, arguments.serve_arg, log) as base_url:
            sample(arguments, items, wanted, base_url)
    report_command(argparse.Namespace(directories=[arguments.out]))


def _items(arguments: argparse.Namespace) -> list[Item]:
    if arguments.limit is not None:
        _at_least_1("--limit", arguments.limit)
    items = [item for spec in arguments.task for item in tasks.load(spec, arguments.limit)]
    twice = [name for name, count in Counter(item.id for item in items).items() if count > 1]
    if twice:
        raise ValueError(f"--task: several items have the id {twice[0]!r}; give them other ids.")
    return items


def _grid(arguments: argparse.Namespace) -> grid.Grid:
    wanted = grid.Grid(
        grid.expand(arguments.penalty or PENALTIES),
        grid.check_temperatures(arguments.temperature),
        _at_least_1("--seeds", arguments.seeds),
    )
    _at_least_1("--concurrency", arguments.concurrency)
    _at_least_1("--max-tokens", arguments.max_tokens)
    if not 0 < arguments.timeout < math.inf:
        raise ValueError(f"--timeout must be a number above 0, got {arguments.timeout:g}.")
    return wanted


def sample(
    arguments: argparse.Namespace, items: list[Item], wanted: grid.Grid, base_url: str
) -> None:
    """Probe the endpoint, then sample what is missing."""
    base_url = base_url.rstrip("/").removesuffix("/v1")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    models, server = endpoints.discover(base_url, headers)
    if arguments.model is None and len(models) != 1:
        raise ValueError(f"--model must be one of {', '.join(models)}.")
    endpoint = endpoints.Endpoint(
        base_url=base_url,
        model=arguments.model or models[0],
        kind=arguments.endpoint,
        max_tokens=arguments.max_tokens,
        fields=_request_fields(arguments, wanted.variants),
        headers=headers,
    )
    endpoint, seed_honoured = asyncio.run(endpoints.probe(endpoint, items, wanted.variants))
    if seed_honoured is False:
        print(
            "warning: this endpoint does not honour seeds, so nobody can repeat these samples "
            "(SGLang does with --enable-deterministic-inference).",
            file=sys.stderr,
        )
    facts = environment(server)
    settings = _settings(endpoint, items, wanted, facts.pop("model_sha256"))
    facts |= {
        # Not a setting: without seeds, two probes may have different results.
        "seed_honoured": seed_honoured,
        "model": facts["model"] if server else endpoint.model,
        "command": command("bench.models"),
        "tasks": arguments.task,
        "commit": commit(),
        "concurrency": arguments.concurrency,
        **versions("httpx", "numpy"),
    }
    with run_directory.record(arguments.out, items, wanted, settings, facts) as kept:
        try:
            sampling.sample(
                endpoint,
                items,
                wanted,
                kept,
                concurrency=arguments.concurrency,
                timeout=arguments.timeout,
            )
        finally:
            print(f"{kept.directory}: {len(kept.done)} samples are kept.", file=sys.stderr)


def sample_in_process(arguments: argparse.Namespace, items: list[Item], wanted: grid.Grid) -> None:
    """Sample what is missing, without a server."""
    folder = Path(arguments.in_process)
    engine = InProcess(folder, arguments.max_tokens)
    facts = environment({"model_path": str(folder)})
    settings = {
        "endpoint_model": folder.name,
        "model_sha256": facts.pop("model_sha256"),
        "endpoint": "in process",
        "fields": {},
        "unit": "tokens",
        **_of_grid(items, wanted, arguments.max_tokens),
    }
    facts |= {
        "seed_honoured": True,
        "command": command("bench.models"),
        "tasks": arguments.task,
        "commit": commit(),
        "concurrency": arguments.concurrency,
        **versions("numpy", "transformers"),
    }
    with run_directory.record(arguments.out, items, wanted, settings, facts) as kept:
        engine.sample(items, wanted, kept, slots=arguments.concurrency)


def _of_grid(items: list[Item], wanted: grid.Grid, max_tokens: int) -> dict[str, Any]:
    """What two samples must share to be compared, wherever they were sampled."""
    return {
        "items": len(items),
        "items_sha256": digest(items),
        "variants": [{"name": v.name, "fields": v.fields} for v in wanted.variants],
        "temperatures": wanted.temperatures,
        "seeds": wanted.seeds,
        "max_tokens": max_tokens,
    }


def _settings(
    endpoint: endpoints.Endpoint, items: list[Item], wanted: grid.Grid, model_sha256: str | None
) -> dict[str, Any]:
    """Everything that two samples must share to be compared."""
    return {
        "endpoint_model": endpoint.model,
        "model_sha256": model_sha256,
        "endpoint": endpoints.PATHS[endpoint.kind],
        "fields": endpoint.fields,
        "unit": "tokens" if endpoint.token_ids else "characters",
        **_of_grid(items, wanted, endpoint.max_tokens),
    }


def report_command(arguments: argparse.Namespace) -> None:
    """Score again what has its samples, print the tables of all results, and draw the plots."""
    cells: list[dict[str, Any]] = []
    for directory in arguments.directories:
        if (directory / run_directory.RUN).exists():
            found = write_result(directory)
        else:
            found = json.loads((directory / run_directory.RESULT).read_text())
        cells += found["cells"]
    print("\n".join(tables.of_runs(cells)), end="")
    draw(arguments.directories[0], cells)


def draw(directory: Path, cells: list[dict[str, Any]]) -> None:
    """Draw the plots of these cells into a directory, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed.", file=sys.stderr)
        return
    for path in charts.draw(directory, cells):
        print(f"{path} is written.", file=sys.stderr)


COMMANDS = {"run": run_command, "report": report_command}


def main(given: list[str]) -> None:
    """Run the command line with these arguments."""
    arguments = parse(given, __doc__)
    try:
        COMMANDS[arguments.command](arguments)
    except (ValueError, OSError, EndpointError, ProcessError, RecordError, SandboxError) as error:
        raise SystemExit(f"bench.models: {error}") from None
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here.", file=sys.stderr)
        raise SystemExit(130) from None


def _request_fields(
    arguments: argparse.Namespace, variants: Sequence[grid.Variant]
) -> dict[str, object]:
    fields: dict[str, object] = {"ignore_eos": True} if arguments.ignore_eos else {}
    for field in arguments.field:
        name, _, value = field.partition("=")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            raise ValueError(f"--field must be NAME=JSON, got {field!r}.") from None
    for name in itertools.chain(fields, *(variant.fields for variant in variants)):
        if name in endpoints.OWN_FIELDS:
            raise ValueError(f"--field and --penalty must leave out {name}: the run sets it.")
    return fields


def _at_least_1(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value}.")
    return value
