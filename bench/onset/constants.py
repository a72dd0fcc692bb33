"""The study of the onset's constants: `python -m bench.onset.constants harm|loops --out FILE`."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from bench import common
from bench.harm import corpora
from bench.harm.vocabulary import SOURCES, Vocabulary
from bench.onset import harm, loops
from bench.onset.settings import SETTINGS
from bench.repetition import tasks

MODELS = {"reasoner": ("pocket", 640, True), "model": (f"jsonl={tasks.PROMPTS}", 512, False)}
"""The models that ship: the task of their prompts, the most tokens, whether an output ends."""
LONGEST_PIECE = 4096


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "measures": arguments.measures,
        "command": common.command("onset.constants"),
        "date": common.date(),
        "commit": common.commit(),
        **common.machine(),
        **common.versions("torch", "transformers", "numba"),
    }
    common.write_result(arguments.out, result | arguments.run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench.onset.constants", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], dict[str, Any]], measures: str
    ) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=measures)
        found.add_argument("--out", type=Path, required=True, help="JSON file to write")
        found.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
        found.set_defaults(run=run, measures=measures)
        return found

    found = command("harm", _harm, "what each setting does to texts that are right")
    found.add_argument("--vocabulary", choices=SOURCES, default="qwen")
    found = command("loops", _loops, "what each setting does to the outputs of a model")
    found.add_argument("model", help=f"{', '.join(MODELS)}, or the folder of one")
    found.add_argument("--prompts", type=Path, help="a folder's: JSON lines, to be continued")
    found.add_argument("--tokens", type=int, default=1024, help="a folder's: the most of an output")
    found.add_argument("--limit", type=int, help="only so many prompts, evenly spread")
    found.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    return parser


def _harm(arguments: argparse.Namespace) -> dict[str, Any]:
    vocabulary = Vocabulary(arguments.vocabulary)
    texts = corpora.texts()
    pieces = corpora.pieces(texts, vocabulary, LONGEST_PIECE)
    return {
        "vocabulary": vocabulary.name,
        "vocab_size": vocabulary.size,
        "texts_sha256": corpora.digest(texts),
        "longest_piece": LONGEST_PIECE,
        **harm.measure(pieces, vocabulary.size, arguments.settings),
    }


def _loops(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.model in MODELS:
        spec, tokens, ends = MODELS[arguments.model]
        folder, items = common.DEMO / arguments.model, tasks.load(spec)
    else:
        folder, items = Path(arguments.model), loops.read_prompts(arguments.prompts)
        tokens, ends = arguments.tokens, False
    limit = min(arguments.limit or len(items), len(items))
    items = [items[i * len(items) // limit] for i in range(limit)]
    task = loops.Task(folder, items, tokens, arguments.model in MODELS, ends)
    weights = (folder / "model.safetensors").read_bytes()
    return {
        "model": folder.name,
        "model_sha256": hashlib.sha256(weights).hexdigest(),
        "items": len(items),
        "tokens": tokens,
        "temperatures": {
            str(temperature): loops.measure(task, temperature, arguments.settings)
            for temperature in arguments.temperature
        },
    }


if __name__ == "__main__":
    main()
