"""The command line of bench.models."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from bench.models.endpoint import PATHS

AddCommand: TypeAlias = Callable[..., argparse.ArgumentParser]

TEMPERATURES = [0.0, 0.3, 0.6, 0.8, 1.0, 1.2]
RUN_HELP = """\
Sample a grid, score it and draw the plot (which needs matplotlib).

tasks      humaneval: OpenAI's 164 problems, judged by their tests in a sandbox
           gym=NAME: 200 problems of a data set of reasoning-gym (to be installed), gsm_symbolic,
           chain_sum or letter_counting for instance
           jsonl: a file of {"prompt", "answer"?, "id"?, "group"?, "level"?, "fields"?}, where
           "fields" are further fields of its request
           pocket: the held-out problems of the pocket reasoner, bench/models/pocket.jsonl
penalties  none, or request fields, as lz_penalty=0.15,lz_onset=3; several make a combination
models     for --serve: a path or name as sglang takes it, or demo, or pocket
key        of an endpoint that wants one: OPENAI_API_KEY of the environment

At temperature 0 a seed changes nothing, so every item is sampled once there. Before the first
sample each penalty's field is sent with a value out of its range. An endpoint that accepts it
ignores the field, and the run is refused. Whether the endpoint honours seeds is tested too, and
recorded; SGLang does with --enable-deterministic-inference only, which --serve gives it.
"""


def parse(arguments: list[str], description: str) -> argparse.Namespace:
    """Read the command line: `command` and its arguments."""
    parser = argparse.ArgumentParser(
        "python -m bench.models",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_run, _add_report):
        add(commands.add_parser)
    return parser.parse_args(arguments)


def _add_run(add_command: AddCommand) -> None:
    run = add_command(
        "run",
        help="sample, score and plot",
        description=RUN_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run directory")
    run.add_argument(
        "--task",
        action="append",
        required=True,
        metavar="TASK",
        help="humaneval, gym=NAME, jsonl=FILE or pocket; repeatable",
    )
    run.add_argument("--limit", type=int, metavar="N", help="only the first N items of each task")
    run.add_argument(
        "--penalty",
        action="append",
        metavar="PENALTY",
        help="none or field=value[,field=value...]; repeatable "
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
    _add_endpoint(run)
    _add_requests(run)


def _add_endpoint(run: argparse.ArgumentParser) -> None:
    where = run.add_argument_group("endpoint").add_mutually_exclusive_group()
    where.add_argument(
        "--base-url", default="http://127.0.0.1:30000", metavar="URL", help="default: %(default)s"
    )
    where.add_argument(
        "--serve",
        metavar="MODEL",
        help="start a server of this model with scripts/serve, and end it",
    )
    where.add_argument(
        "--in-process",
        metavar="MODEL",
        help="sample in this process, on the CPU; --concurrency outputs at a time",
    )
    run.add_argument(
        "--serve-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="an argument for that server, as --serve-arg=--tp=2; repeatable",
    )
    run.add_argument("--model", metavar="NAME", help="default: the endpoint's only model")
    run.add_argument("--endpoint", choices=list(PATHS), default="chat", help="default: %(default)s")


def _add_requests(run: argparse.ArgumentParser) -> None:
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


def _add_report(add_command: AddCommand) -> None:
    report = add_command("report", help="score and plot again; print the tables of several runs")
    report.add_argument(
        "directories",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="of a run, or of a result.json; the plots of several runs go to the first",
    )
