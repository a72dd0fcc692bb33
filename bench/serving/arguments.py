"""The command line of the serving benchmark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.serving import hardware
from bench.serving.models import MODELS, SERVER, UPSTREAM
from bench.serving.result import PAPER_SIZES
from bench.serving.runs import sglang_arguments
from lz_penalty.fields.lz import FIELDS, LARGEST_MAX_WINDOW_SIZE, LZParams

SMOKE = {"models": ["demo"], "input_len": 64, "output_len": 32, "rates": [4.0], "num_prompts": 16}
FULL = {
    "models": [name for name, model in MODELS.items() if model.paper is not None],
    "input_len": PAPER_SIZES[0],
    "output_len": PAPER_SIZES[1],
    "rates": [4.0, 16.0],
    "num_prompts": 128,
}
BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "waiting": ("LZ waiting, lz_onset 3", {"lz_onset": 3}),
    "frequency": ("frequency penalty 0.1 of this build", {"frequency_penalty": 0.1}),
    "upstream": ("frequency and repetition penalty of upstream", {UPSTREAM: True}),
}
"""What can be measured beside the penalty of the command line: its row's words and parameters."""
BLOCKS = {("static", True): 6, ("live", True): 6, ("static", False): 80, ("live", False): 6}
"""By mode, and whether it is a smoke test."""


def parse(argv: list[str], description: str | None = None) -> argparse.Namespace:
    """Read the command line, and fill in what depends on whether it is a smoke test."""
    end = argv.index("--") if "--" in argv else len(argv)
    parser = _parser(description)
    arguments = parser.parse_args(argv[:end])

    arguments.sglang = argv[end + 1 :]
    asked = arguments.models or ["demo"]
    has_gpus = bool(hardware.torch_facts()["gpus"])
    arguments.smoke = arguments.smoke or not (has_gpus or "demo" not in asked)
    for name, value in (SMOKE if arguments.smoke else FULL).items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
    if arguments.blocks is None:
        arguments.blocks = BLOCKS[arguments.mode, arguments.smoke]
    arguments.fields = _penalty_fields(arguments, parser)
    arguments.variants = _variants(arguments)
    _check(arguments, parser)
    return arguments


def _variants(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What is compared with no penalty: a row's words, empty if it is alone, and its parameters."""
    beside = [BESIDE[name] for name in getattr(arguments, "beside", [])]
    if not beside:
        return {"": arguments.fields}
    found = {"LZ always on": arguments.fields}
    for words, fields in beside:
        found[words] = arguments.fields | fields if "lz_onset" in fields else fields
    return found


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.serving",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    static = modes.add_parser("static", help="a fixed batch, without a server")
    live = modes.add_parser("live", help="a server at request rates")
    for page in (static, live):
        page.add_argument("--out", type=Path, required=True, help="JSON file to write")
        page.add_argument("--smoke", action="store_true", help="the smoke test, even with a GPU")
        page.add_argument(
            "--models",
            nargs="+",
            help=f"of {', '.join(MODELS)}, or any with a --model-path (default: the paper's)",
        )
        page.add_argument(
            "--model-path", nargs="+", default=[], metavar="NAME=PATH", help="real weights"
        )
        page.add_argument(
            "--tp",
            type=int,
            default=1,
            help="GPUs of a model, at most (default: 1); they must divide its heads",
        )
        page.add_argument("--blocks", type=int, help="of four runs (default: 12; live: 6)")
        page.add_argument("--input-len", type=int, help="tokens (default: 1024)")
        page.add_argument("--output-len", type=int, help="tokens (default: 64)")
        page.add_argument(
            "--fields", type=_object, default={}, metavar="JSON", help="beside lz_penalty 0.15"
        )
    static.add_argument(
        "--batch-size", type=int, nargs="+", help="of every model (default: the paper's)"
    )
    static.add_argument(
        "--beside",
        nargs="+",
        default=[],
        choices=BESIDE,
        help="what to measure besides: the penalty waiting for a loop, this build's frequency "
        "penalty, or upstream's frequency and repetition penalty",
    )
    live.add_argument("--base-url", help="a server that runs on this machine already")
    live.add_argument(
        "--rates", type=float, nargs="+", help="requests/s, inf for all at once (default: 4 16)"
    )
    live.add_argument("--num-prompts", type=int, help="requests in a run (default: 128)")
    return parser


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return found


def _penalty_fields(
    arguments: argparse.Namespace, parser: argparse.ArgumentParser
) -> dict[str, Any]:
    if unknown := arguments.fields.keys() - set(FIELDS):
        parser.error(f"--fields must hold {', '.join(FIELDS)} only, got {', '.join(unknown)}.")
    fields = {"lz_penalty": 0.15, **arguments.fields}
    try:
        LZParams.parse(fields, LARGEST_MAX_WINDOW_SIZE)
    except ValueError as error:
        parser.error(f"--fields: {error}")
    if not fields["lz_penalty"]:
        parser.error("--fields: lz_penalty must be above 0: it is compared with 0.")
    return fields


def _check(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse what cannot be measured, and complete the models."""
    if arguments.out.suffix == ".jsonl":
        parser.error("--out: the finished blocks beside it are the .jsonl; take .json.")
    least = {"tp": 1, "blocks": 1, "input_len": 1, "output_len": 2, "num_prompts": 1}
    values = [(name, getattr(arguments, name, None), at_least) for name, at_least in least.items()]
    values += [("batch_size", value, 1) for value in getattr(arguments, "batch_size", None) or []]
    for name, value, at_least in values:
        if value is not None and value < at_least:
            parser.error(f"--{name.replace('_', '-')} must be at least {at_least}, got {value}.")
    for rate in getattr(arguments, "rates", []):
        if not rate > 0:
            parser.error(f"--rates must be above 0, got {rate:g}.")
    if any("=" not in part for part in arguments.model_path):
        parser.error("--model-path must be NAME=PATH.")
    arguments.model_path = dict(part.partition("=")[::2] for part in arguments.model_path)
    if unknown := set(arguments.model_path) - set(arguments.models):
        parser.error(f"--model-path: {', '.join(sorted(unknown))} is not one of --models.")
    if unknown := set(arguments.models) - set(MODELS) - set(arguments.model_path):
        parser.error(
            f"--models must be of {', '.join(MODELS)}, or have a --model-path, "
            f"got {', '.join(sorted(unknown))}."
        )
    if getattr(arguments, "base_url", None):
        if arguments.sglang or arguments.model_path or arguments.tp != 1:
            parser.error(
                "--base-url: --tp, --model-path and arguments after -- are for a server that is "
                "started here."
            )
        arguments.models = [SERVER]


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that all runs of a result file share."""
    names = {
        "static": ("input_len", "output_len", "batch_size", "beside"),
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
        **hardware.environment(),
        "lz": arguments.fields,
        **({} if getattr(arguments, "base_url", None) else started),
        **{name: getattr(arguments, name) for name in names[arguments.mode]},
    }
