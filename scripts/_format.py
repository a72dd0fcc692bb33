"""scripts/format: formats all code of this checkout, and checks its style and types."""

from __future__ import annotations

import _supervise
from _environment import ROOT, Environment, main, say
from _test import variables

USAGE = """\
usage: scripts/format

Mend what ruff can mend, format, and check style and types, in this checkout; what scripts/test
checks of them. Seconds once set up.
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
    ]
    statuses = []
    with environment.temporary_folder():
        for command in commands:
            say(" ".join(command[2:]))
            statuses.append(_supervise.run(command, env=variables(environment), cwd=ROOT))
    return next(filter(None, statuses), 0)


if __name__ == "__main__":
    main(format_all)
