"""scripts/format: formats this checkout's code, checks it, and writes the documents' tables."""

from __future__ import annotations

import os

import _supervise
from _checkout import ROOT
from _environment import Environment, main, say
from _test import variables

USAGE = """\
usage: scripts/format

Mend what ruff can mend, format, and check style and types, in this checkout, and write the tables
of the documents that come from code, patches and result files. scripts/test checks all of this.
Seconds once set up.
"""


def format_all(arguments: list[str]) -> int:
    """Run the script; return its exit status: 0, or that of the first failure."""
    if arguments:
        print(USAGE, end="")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    environment = Environment("cpu")
    environment.set_up(tests=True, package_of_checkout=True)
    python = str(environment.python)
    commands = [
        [python, "-m", "ruff", "check", "--fix", "."],
        [python, "-m", "ruff", "format", "."],
        [python, "-m", "mypy"],
        [python, "-m", "_docs"],
    ]
    own = ("python", "scripts", "tests")
    folders = os.pathsep.join(map(str, (ROOT, *(ROOT / name for name in own))))
    env = variables(environment) | {"PYTHONPATH": folders}
    statuses = []
    with environment.temporary_folder():
        for command in commands:
            say(" ".join(command[2:]))
            statuses.append(_supervise.run(command, env=env, cwd=ROOT))
    return next(filter(None, statuses), 0)


if __name__ == "__main__":
    main(format_all)
