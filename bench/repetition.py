"""Does it work? Degenerate repetition and accuracy, over temperatures and penalties.

Asks the problems of a task of an OpenAI-compatible endpoint under every penalty, at every
temperature, with every seed, and says how many outputs fall into a loop and how many answers are
right: the figures 2, 3 and 4 of the paper (arXiv 2504.20131).

    python bench/repetition.py run --serve pocket --task pocket --out DIR
    python bench/repetition.py run --base-url http://127.0.0.1:30000 --out DIR \\
        --task aime2024=hub:OWNER/NAME@COMMIT --task gpqa=gpqa_diamond.csv \\
        --penalty none --penalty lz --penalty lz_penalty=0.15,lz_cost=rate \\
        --penalty repetition_penalty=1.2,frequency_penalty=0.2 --temperature 0 0.6 1
    python bench/repetition.py judge DIR --judge-url URL --judge-model NAME
    python bench/repetition.py report DIR

`COMMAND --help` is the manual. The same `run` again goes on where it was stopped, in whatever way;
no finished sample is lost and none is asked for twice. DIR holds run.json (settings, machine,
server), items.jsonl, samples.jsonl (the raw outputs), result.json (the scores) and the report.

An output is degenerate if some unit of its token ids stands at least 20 times in a row
(`loops.detector`, the paper's detector); of an endpoint that does not tell token ids, characters.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import math
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common import commit, environment, versions
from loops import grid, sampling, scores, tasks

TEMPERATURES = [0.0, 0.3, 0.6, 0.8, 1.0, 1.2]
PENALTIES = ["none", "lz_penalty=0.15,lz_cost=marginal", "lz_penalty=0.15,lz_cost=rate"]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="sample, score and report", description=RUN_HELP, formatter_class=formatter
    )
    run.set_defaults(call=run_command)
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run directory")
    run.add_argument(
        "--task",
        action="append",
        required=True,
        metavar="TASK",
        help="aime2024=WHERE, aime2025=WHERE, gpqa=WHERE, jsonl=FILE or pocket; repeatable",
    )
    run.add_argument("--limit", type=int, metavar="N", help="only the first N items of each task")
    run.add_argument(
        "--penalty",
        action="append",
        metavar="PENALTY",
        help="a preset or field=value[,field=value...]; repeatable "
        "(default: none and lz_penalty 0.15 in both costs)",
    )
    run.add_argument(
        "--temperature",
        type=float,
        nargs="+",
        default=TEMPERATURES,
        metavar="T",
        help=f"default: {' '.join(f'{t:g}' for t in TEMPERATURES)}",
    )
    run.add_argument("--seeds", type=int, default=3, metavar="N", help="default: %(default)s")

    where = run.add_argument_group("endpoint").add_mutually_exclusive_group()
    where.add_argument(
        "--base-url", default="http://127.0.0.1:30000", metavar="URL", help="default: %(default)s"
    )
    where.add_argument(
        "--serve",
        metavar="MODEL",
        help="start a server of this model with scripts/serve, and end it",
    )
    run.add_argument(
        "--serve-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="an argument for that server, as --serve-arg=--tp=2; repeatable",
    )
    run.add_argument("--model", metavar="NAME", help="default: the endpoint's only model")
    run.add_argument(
        "--endpoint", choices=list(sampling.PATHS), default="chat", help="default: %(default)s"
    )
    run.add_argument(
        "--concurrency",
        type=int,
        default=32,
        metavar="N",
        help="requests at a time (default: %(default)s)",
    )
    run.add_argument(
        "--timeout",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="that one request may take (default: %(default)g)",
    )
    run.add_argument(
        "--max-tokens",
        type=int,
        default=512,
        metavar="N",
        help="of an answer (default: %(default)s)",
    )
    run.add_argument("--ignore-eos", action="store_true", help="sample past the answer's end")
    run.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="a further field of every request; repeatable",
    )

    judge = commands.add_parser(
        "judge",
        help="ask a language model which outputs are degenerate, then score and report",
        description="Ask a language model of every sample whether it is degenerate, for a second "
        "opinion beside the detector's; both are kept. Again, it goes on where it was stopped. "
        "OPENAI_API_KEY of the environment is the key.",
    )
    judge.set_defaults(call=judge_command)
    judge.add_argument("directory", type=Path, metavar="DIR")
    judge.add_argument(
        "--judge-url", required=True, metavar="URL", help="as http://127.0.0.1:30000/v1"
    )
    judge.add_argument("--judge-model", required=True, metavar="NAME")
    judge.add_argument(
        "--concurrency",
        type=int,
        default=8,
        metavar="N",
        help="requests at a time (default: %(default)s)",
    )

    report = commands.add_parser("report", help="score and report again from what is kept")
    report.add_argument("directory", type=Path, metavar="DIR", help="of a run, or of a result.json")
    report.set_defaults(call=report_command)
    return parser.parse_args(arguments)


RUN_HELP = f"""\
Sample a grid, score it and write the report (which needs matplotlib).

tasks      aime2024, aime2025, gpqa (GPQA-diamond): WHERE is a .jsonl, .csv or .parquet file, or
           hub:OWNER/NAME@COMMIT[:FILE], a dataset of the Hugging Face hub at a full commit
           jsonl: a file of {{"prompt", "answer"?, "id"?, "group"?, "level"?}}
           pocket: the held-out problems of the pocket reasoner, bench/pocket.jsonl
penalties  none, or request fields, as lz_penalty=0.15,lz_cost=rate; several make a combination.
           Presets, each for several strengths: {", ".join(list(grid.PRESETS)[1:])}
models     for --serve: a path or name as sglang takes it, or demo, or pocket
key        of an endpoint that wants one: OPENAI_API_KEY of the environment

At temperature 0 a seed changes nothing, so every item is sampled once there. Before the first
sample each penalty's field is sent with a value out of its range: an endpoint that answers ignores
the field, and the run is refused. Whether it honours seeds is tried too, and recorded; SGLang does
with --enable-deterministic-inference only, which --serve gives it.
"""


def run_command(arguments: argparse.Namespace) -> None:
    """Sample what is missing, then score and report."""
    if arguments.limit is not None:
        _at_least_1("--limit", arguments.limit)
    items = [item for spec in arguments.task for item in tasks.load(spec, arguments.limit)]
    twice = [name for name, count in Counter(item.id for item in items).items() if count > 1]
    if twice:
        raise ValueError(f"--task: several items have the id {twice[0]!r}; give them other ids.")
    wanted = grid.Grid(
        grid.expand(arguments.penalty or PENALTIES),
        grid.check_temperatures(arguments.temperature),
        _at_least_1("--seeds", arguments.seeds),
    )
    _at_least_1("--concurrency", arguments.concurrency)
    _at_least_1("--max-tokens", arguments.max_tokens)
    if not 0 < arguments.timeout < math.inf:
        raise ValueError(f"--timeout must be a number above 0, got {arguments.timeout:g}.")
    if arguments.serve is None:
        if arguments.serve_arg:
            raise ValueError("--serve-arg goes with --serve.")
        sample(arguments, items, wanted, arguments.base_url)
    else:
        log = arguments.out / "server.log"
        print(f"starting a server of {arguments.serve}; its output: {log}", file=sys.stderr)
        with sampling.serving(arguments.serve, arguments.serve_arg, log) as base_url:
            sample(arguments, items, wanted, base_url)
    finish(arguments.out)


def sample(
    arguments: argparse.Namespace, items: list[tasks.Item], wanted: grid.Grid, base_url: str
) -> None:
    """Probe the endpoint, then sample what is missing."""
    base_url = base_url.rstrip("/").removesuffix("/v1")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    models, server = sampling.discover(base_url, headers)
    if arguments.model is None and len(models) != 1:
        raise ValueError(f"--model must be one of {', '.join(models)}.")
    endpoint = sampling.Endpoint(
        base_url=base_url,
        model=arguments.model or models[0],
        kind=arguments.endpoint,
        max_tokens=arguments.max_tokens,
        fields=_request_fields(arguments, wanted.variants),
        headers=headers,
    )
    endpoint, seed_honoured = asyncio.run(sampling.probe(endpoint, items, wanted.variants))
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
        "endpoint": sampling.PATHS[endpoint.kind],
        "items": len(items),
        "items_sha256": sampling.items_digest(items),
        "variants": [
            {"name": v.name, "fields": v.fields, "family": v.family, "strength": v.strength}
            for v in wanted.variants
        ],
        "temperatures": wanted.temperatures,
        "seeds": wanted.seeds,
        "max_tokens": endpoint.max_tokens,
        "fields": endpoint.fields,
        "unit": "tokens" if endpoint.token_ids else "characters",
    }
    facts |= {
        # No setting: where seeds do not count, two probes may find two answers.
        "seed_honoured": seed_honoured,
        "model": facts["model"] if server else endpoint.model,
        "command": shlex.join(["python", *sys.argv]),
        "tasks": arguments.task,
        "commit": commit(),
        "concurrency": arguments.concurrency,
        **versions("httpx", "numpy"),
    }
    with sampling.record(arguments.out, items, wanted, settings, facts) as kept:
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


def judge_command(arguments: argparse.Namespace) -> None:
    """Ask for the missing verdicts, then score and report."""
    import openai  # takes seconds, and the other commands do without it

    from loops import judging

    _at_least_1("--concurrency", arguments.concurrency)
    try:
        undecided = judging.judge_all(
            arguments.directory,
            arguments.judge_url,
            arguments.judge_model,
            arguments.concurrency,
        )
    except openai.OpenAIError as error:
        raise sampling.RunError(f"{arguments.judge_url}: {error}") from None
    if undecided:
        print(f"{undecided} answers of the judge have no verdict.", file=sys.stderr)
    finish(arguments.directory)


def report_command(arguments: argparse.Namespace) -> None:
    """Score and report again; of a result kept without its samples, only draw the report."""
    directory = arguments.directory
    if (directory / scores.RESULT).exists() and not (directory / sampling.RUN).exists():
        draw(directory)
    else:
        finish(directory)


def finish(directory: Path) -> None:
    """Write result.json and, with matplotlib, the report."""
    scores.write_result(directory)
    print(f"{directory / scores.RESULT} is written.", file=sys.stderr)
    draw(directory)


def draw(directory: Path) -> None:
    """Draw the report of a result.json, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no report: matplotlib is not installed.", file=sys.stderr)
        return
    from loops.report import write_report

    write_report(directory)
    print(f"{directory / 'report.html'} is written.", file=sys.stderr)


def main(given: list[str]) -> None:
    """Run the command line with these arguments."""
    arguments = parse(given)
    try:
        arguments.call(arguments)
    except (ValueError, OSError, sampling.RunError) as error:
        raise SystemExit(f"{Path(sys.argv[0]).name}: {error}") from None
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
        if name in sampling.OWN_FIELDS:
            raise ValueError(f"--field and --penalty must leave out {name}: the run sets it.")
    return fields


def _at_least_1(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value}.")
    return value


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main(sys.argv[1:])
