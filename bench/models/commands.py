"""Measure degenerate repetition and accuracy, over temperatures and penalties.

Samples the problems of a task under every penalty, at every temperature, with every seed, and
reports how many outputs fall into a loop and how many answers are right, as figures 2, 3 and 4 of
the paper do (arXiv 2504.20131).

    python -m bench.models run --in-process MODEL --task humaneval --out DIR
    python -m bench.models run --base-url http://127.0.0.1:30000 --out DIR \\
        --task jsonl=FILE --penalty none --penalty lz_penalty=0.15,lz_onset=3 \\
        --penalty repetition_penalty=1.2,frequency_penalty=0.2 --temperature 0 0.6 1
    python -m bench.models report DIR...

`COMMAND --help` is the manual. However a `run` was stopped, the same command continues it: no
finished sample is lost and none is asked for twice. DIR holds run.json (settings, machine,
server), items.jsonl, samples.jsonl (the raw outputs), grades.jsonl (verdicts of programs),
result.json (the scores) and the plot.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import command, commit, environment, versions
from bench.models import charts, grid, run_directory, tables, tasks
from bench.models import endpoint as endpoints
from bench.models.endpoint import EndpointError
from bench.models.grid import Item, digest
from bench.models.result import write_result
from bench.models.sandbox import SandboxError
from bench.records import RecordError
from sglang_lz.models.packages import PackageError

PENALTIES = ["none", "lz_penalty=0.15,lz_onset=3"]
TEMPERATURES = [0.0, 0.3, 0.6, 1.0]
RUN_HELP = """\
Sample a grid, score it and draw the plot (which needs matplotlib).

tasks      humaneval: OpenAI's 164 problems, judged by their tests in a sandbox
           gym=NAME: 200 problems of a data set of reasoning-gym (to be installed), gsm_symbolic,
           chain_sum or letter_counting for instance
           jsonl=FILE: a file of {"prompt", "answer"?, "id"?, "group"?, "level"?, "fields"?}, where
           "fields" are further fields of its request
penalties  none, or request fields, as lz_penalty=0.15,lz_onset=3; several make a combination
key        of an endpoint that wants one: OPENAI_API_KEY of the environment

At temperature 0 a seed changes nothing, so every item is sampled once there. Before the first
sample each penalty's field is sent with a value out of its range. An endpoint that accepts it
ignores the field, and the run is refused. Whether the endpoint honours seeds is tested too, and
recorded; SGLang does with --enable-deterministic-inference only.
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line: `command` and its arguments."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m bench.models", description=__doc__, formatter_class=raw
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run", help="sample, score and plot", description=RUN_HELP, formatter_class=raw
    )
    add = run.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="the run directory")
    add(
        "--task",
        action="append",
        required=True,
        help="humaneval, gym=NAME or jsonl=FILE; repeatable",
    )
    add("--limit", type=_count, metavar="N", help="only the first N items of each task")
    add(
        "--penalty",
        action="append",
        help=f"none or field=value[,field=value]; repeatable (default: {' and '.join(PENALTIES)})",
    )
    add(
        "--temperature",
        type=float,
        nargs="+",
        default=TEMPERATURES,
        metavar="T",
        help=f"default: {' '.join(f'{t:g}' for t in TEMPERATURES)}",
    )
    add("--seeds", type=_count, default=3, metavar="N", help="default: %(default)s")
    add("--max-tokens", type=_count, default=512, metavar="N", help="default: %(default)s")
    add("--concurrency", type=_count, default=32, metavar="N", help="outputs at a time")
    where = run.add_mutually_exclusive_group()
    where.add_argument("--base-url", default="http://127.0.0.1:30000", help="default: %(default)s")
    where.add_argument(
        "--in-process",
        metavar="MODEL",
        help="a folder, or a name of `sglang-lz models`: sample in this process, on the CPU",
    )
    add("--model", metavar="NAME", help="of the endpoint; default: its only one")
    add(
        "--field",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="a further field of every request to the endpoint; repeatable",
    )
    report = commands.add_parser(
        "report", help="score and plot again; print the tables of several runs"
    )
    report.add_argument(
        "directories",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="of a run, or of a result.json; the plots of several runs go to the first",
    )
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def run_command(arguments: argparse.Namespace) -> None:
    """Sample what is missing, then score and plot."""
    items = [item for spec in arguments.task for item in tasks.load(spec, arguments.limit)]
    twice = [name for name, count in Counter(item.id for item in items).items() if count > 1]
    if twice:
        raise ValueError(f"--task: several items have the id {twice[0]!r}; give them other ids.")
    wanted = grid.Grid(
        grid.expand(arguments.penalty or PENALTIES),
        grid.check_temperatures(arguments.temperature),
        arguments.seeds,
    )
    if arguments.in_process is not None:
        sample_in_process(arguments, items, wanted)
    else:
        sample(arguments, items, wanted)
    report_command(argparse.Namespace(directories=[arguments.out]))


def sample(arguments: argparse.Namespace, items: list[Item], wanted: grid.Grid) -> None:
    """Probe the endpoint, then sample what is missing."""
    base_url = arguments.base_url.rstrip("/").removesuffix("/v1")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    models, server = endpoints.discover(base_url, headers)
    if arguments.model is None and len(models) != 1:
        raise ValueError(f"--model must be one of {', '.join(models)}.")
    endpoint = endpoints.Endpoint(
        base_url=base_url,
        model=arguments.model or models[0],
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
    settings = {
        "endpoint_model": endpoint.model,
        "model_sha256": facts.pop("model_sha256"),
        "endpoint": endpoints.PATH,
        "fields": endpoint.fields,
        "unit": "tokens" if endpoint.token_ids else "characters",
        **_of_grid(items, wanted, endpoint.max_tokens),
    }
    facts |= {
        # Not a setting: without seeds, two probes may have different results.
        "seed_honoured": seed_honoured,
        "model": facts["model"] if server else endpoint.model,
        "commit": commit(),
        **_of_run(arguments, "httpx"),
    }
    with run_directory.record(arguments.out, items, wanted, settings, facts) as kept:
        try:
            asyncio.run(endpoints.sample(endpoint, items, wanted, kept, arguments.concurrency))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            print(f"{kept.directory}: {len(kept.done)} samples are kept.", file=sys.stderr)


def sample_in_process(arguments: argparse.Namespace, items: list[Item], wanted: grid.Grid) -> None:
    """Sample what is missing, without a server."""
    from bench.models import inprocess  # needs more than a machine that only asks an endpoint has

    if arguments.field or any(item.fields for item in items):
        raise ValueError("--in-process samples items without fields, and without --field.")
    for name in {name for variant in wanted.variants for name in variant.fields}:
        if name not in inprocess.KNOWN:
            raise ValueError(f"--in-process does not know {name}.")
    folder = inprocess.folder_of(arguments.in_process)
    engine = inprocess.InProcess(folder, arguments.max_tokens)
    facts = environment({"model_path": str(folder)})
    settings = {
        "endpoint_model": folder.name,
        "model_sha256": facts.pop("model_sha256"),
        "endpoint": "in process",
        "commit": commit(),  # it has the penalties
        "fields": {},
        "unit": "tokens",
        **_of_grid(items, wanted, arguments.max_tokens),
    }
    facts |= {"seed_honoured": True, **_of_run(arguments, "transformers")}
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


def _of_run(arguments: argparse.Namespace, library: str) -> dict[str, Any]:
    return {
        "command": command("bench.models"),
        "tasks": arguments.task,
        "concurrency": arguments.concurrency,
        **versions(library, "numpy"),
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
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed.", file=sys.stderr)
        return
    for path in charts.draw(arguments.directories[0], cells):
        print(f"{path} is written.", file=sys.stderr)


COMMANDS = {"run": run_command, "report": report_command}


def main(given: list[str]) -> None:
    """Run the command line with these arguments."""
    arguments = parse(given)
    try:
        COMMANDS[arguments.command](arguments)
    except (ValueError, OSError, EndpointError, PackageError, RecordError, SandboxError) as error:
        raise SystemExit(f"bench.models: {error}") from None
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here.", file=sys.stderr)
        raise SystemExit(130) from None


def _request_fields(
    arguments: argparse.Namespace, variants: Sequence[grid.Variant]
) -> dict[str, object]:
    fields: dict[str, object] = {}
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
