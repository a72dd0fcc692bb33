"""What `sglang-lz` and scripts/patches have in common: their commands, options and statuses."""

from __future__ import annotations

import argparse
import inspect
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sglang_lz.models.packages import PackageError
from sglang_lz.startup.errors import DistError

STATUS = """\
exit status:
  0  done, or all is well
  1  a check found something; each finding is a line of the output
  2  it could not be done; one sentence on standard error says why and what to do next
  130, 143  interrupted or terminated; nothing was changed"""


class CommandLine:
    """A program with commands, which are functions from the options to an exit status.

    The name of such a function is `_` and that of its command. Its docstring is the help, with the
    line for the list of commands first. The command ``open_to_all`` gets all arguments that it has
    no options for, as `arguments`. ``pages`` holds the parser of each command.
    """

    def __init__(
        self,
        program: str,
        description: str,
        commands: Iterable[Callable[[argparse.Namespace], int]],
        open_to_all: str = "",
    ) -> None:
        plain = argparse.RawDescriptionHelpFormatter
        self._parser = argparse.ArgumentParser(
            program, description=description, epilog=STATUS, formatter_class=plain
        )
        self._open_to_all = open_to_all
        self.pages: dict[str, argparse.ArgumentParser] = {}
        adder = self._parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        for run in commands:
            line, text = (inspect.getdoc(run) or "").split("\n", 1)
            name = run.__name__.removeprefix("_")
            page = adder.add_parser(name, help=line, description=text, formatter_class=plain)
            page.allow_abbrev = name != open_to_all
            page.set_defaults(run=run)
            self.pages[name] = page

    def add(self, names: str, argument: str, metavar: str | None = None, **settings: Any) -> None:
        """Add an argument to some commands, as `add_argument` does; that of a file is a Path."""
        if metavar in ("FILE", "DIR", "TARGET"):
            settings.setdefault("type", Path)
        settings |= {"metavar": metavar} if metavar else {}
        for name in names.split():
            self.pages[name].add_argument(argument, **settings)

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """Run one command; return its exit status (see STATUS)."""
        options, rest = self._parser.parse_known_args(arguments)
        if options.command == self._open_to_all:
            options.arguments = rest
        elif rest:
            self._parser.error(f"unrecognized arguments: {' '.join(rest)}")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, to leave nothing behind
        try:
            return int(options.run(options))
        except (DistError, PackageError) as error:
            why = str(error)
        except ImportError as error:
            why = f"{options.command} needs what is not installed ({error})."
        except OSError as error:
            why = f"{error.filename or 'standard input'} cannot be used ({error.strerror})."
        except KeyboardInterrupt:
            say("sglang-lz: interrupted, nothing was changed.")
            return 130
        say(f"sglang-lz: {why}")
        return 2


def say(text: str) -> None:
    """Print a line to standard error without buffering."""
    print(text, file=sys.stderr, flush=True)
