"""The command line: `python -m bench.looping train|prompts`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.looping import prompts, train


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m bench.looping", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    training = commands.add_parser("train", help="train a model")
    training.add_argument("name", choices=list(train.SIZES))
    training.add_argument("--out", type=Path, required=True, metavar="DIR")
    training.add_argument("--steps", type=int, metavar="N", help="batches to train on")
    writing = commands.add_parser("prompts", help="write the prompts of a trained model")
    writing.add_argument("name", choices=list(train.SIZES))
    writing.add_argument("--model", type=Path, required=True, metavar="DIR")
    writing.add_argument("--out", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args(argv)
    if arguments.command == "train":
        train.make(arguments.name, arguments.out, steps=arguments.steps)
    else:
        prompts.write(arguments.name, arguments.model, arguments.out)


if __name__ == "__main__":
    main()
