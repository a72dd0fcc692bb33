"""scripts/format: formats this checkout's code, checks it, and writes the documents' tables."""

from __future__ import annotations

import os

import _supervise
from _checkout import ROOT
from _environment import Environment, main, say, temporary_folder
from _test import variables

USAGE = """\
usage: scripts/format

Fix what ruff can fix, format, check style and types, and write the documents' generated blocks.
"""


def format_all(arguments: list[str]) -> int:
    """Run the script; return its exit status: 0, or that of the first failure."""
    if arguments:
        print(USAGE, end="")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    environment = Environment("cpu")
    environment.set_up(tests=True, package_of_checkout=True)
    folders = (ROOT, *(ROOT / name for name in ("python", "scripts", "tests")))
    env = variables(environment) | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    statuses = []
    with temporary_folder():
        for command in ("ruff check --fix .", "ruff format .", "mypy", "_docs"):
            say(command)
            program = [str(environment.python), "-m", *command.split()]
            statuses.append(_supervise.run(program, env=env, cwd=ROOT))
    return next(filter(None, statuses), 0)


if __name__ == "__main__":
    main(format_all)
