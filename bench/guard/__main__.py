"""The command line: `python -m bench.guard cost|alarms|outputs ... --out FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench import common
from bench.guard import alarms, cost, outputs


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m bench.guard", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, meaning in (
        ("cost", "what the detector costs a step"),
        ("alarms", "right texts that would be stopped"),
        ("outputs", "answers of a model that loops"),
    ):
        command = commands.add_parser(name, help=meaning)
        command.add_argument("--out", type=Path, required=True, metavar="FILE")
        if name == "outputs":
            command.add_argument("model", help="pocket, demo, or a folder")
            command.add_argument("--prompts", type=Path, metavar="FILE", help="of a folder's model")
            command.add_argument("--max-tokens", type=int, required=True, metavar="N")
            command.add_argument("--limit", type=int, metavar="N", help="the first N prompts")
    arguments = parser.parse_args(argv)
    result: dict[str, Any] = {
        **common.provenance("bench.guard"),
        **common.versions("numba", "numpy"),
    }
    if arguments.command == "outputs":
        found = outputs.measure(
            arguments.model, arguments.prompts, arguments.max_tokens, arguments.limit
        )
        text = outputs.table(found)
    else:
        module = {"cost": cost, "alarms": alarms}[arguments.command]
        found = module.measure()
        text = module.table(found)
    common.write_result(arguments.out, result | found)
    if arguments.command == "alarms":
        alarms.draw(found, arguments.out.with_suffix(".png"))
    print(text)


main()
