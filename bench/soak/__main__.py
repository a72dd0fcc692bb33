"""Soak: drive real servers with random schedules, and hold every sampled position to the oracle.

    python -m bench.soak --positions 1000000 --out bench/results/soak.json

It starts a server of each configuration in turn and sends it waves of random requests: many at
once, with penalties of all kinds, streams, aborts, clients that leave, pauses, refused requests. In
some waves the server is killed and started again. Whatever comes back with logprobs, whole or in
part, must obey the contract at every position (docs/SPEC.md, section 7): `bench/soak/check.py`. The
exit status is 1 if anything deviates, is refused without reason, or does not come.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.common import command, commit, date, machine, versions, write_result
from bench.soak.check import Checker, Verdict
from bench.soak.drive import Driver, Log, Served
from bench.soak.schedule import Schedule
from server.configurations import CONFIGURATIONS
from server.launch import Config
from server.summary import TOLERANCE

NAMES = ("overlap", "no-overlap", "tiny-pool", "ngram", "eagle-tree")
INCREMENTAL = ("no-overlap", "ngram")
"""Whose streams send each token once; the others' events repeat all before."""
KILL_EVERY = 8
"""Waves; the server is killed in one of so many."""


@dataclass
class Row:
    """What was checked of a configuration, or of a kind of positions."""

    positions: int = 0
    largest: float = 0.0
    beyond: int = 0

    def add(self, verdict: Verdict) -> None:
        """Count a verdict."""
        self.positions += verdict.positions
        self.largest = max(self.largest, verdict.deviation)
        self.beyond += verdict.beyond


@dataclass
class Tally:
    """All verdicts so far."""

    configurations: dict[str, Row] = field(default_factory=dict)
    kinds: dict[str, Row] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, verdicts: list[Verdict]) -> None:
        """Count verdicts; the first failures are printed as they come."""
        for verdict in verdicts:
            self.configurations.setdefault(verdict.configuration, Row()).add(verdict)
            for kind in verdict.kinds:
                self.kinds.setdefault(kind, Row()).add(verdict)
            if verdict.failure is not None:
                self.failures.append(verdict.failure)
                if len(self.failures) <= 3:
                    print(json.dumps(verdict.failure), file=sys.stderr, flush=True)

    @property
    def positions(self) -> int:
        """Of all configurations."""
        return sum(row.positions for row in self.configurations.values())


def configuration(name: str) -> Config:
    """A configuration of the tests', as the soak serves it."""
    config = CONFIGURATIONS[name]
    more: tuple[str, ...] = ()
    if name in INCREMENTAL:
        more += ("--incremental-streaming-output",)
    if "--max-running-requests" not in config.flags:
        more += ("--max-running-requests", "32")
    return replace(config, flags=(*config.flags, *more))


def main() -> int:
    """Run the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        "python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--minutes", type=float, help="stop after so long")
    amount.add_argument("--positions", type=int, default=100_000, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--configuration", action="append", choices=NAMES, help="default: each in turn"
    )
    parser.add_argument("--kill-every", type=int, default=KILL_EVERY, metavar="WAVES")
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    names = arguments.configuration or list(NAMES)
    configs = {name: configuration(name) for name in names}
    rates = {}
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as own,
        Checker({name: config.flags for name, config in configs.items()}) as checker,
    ):
        checks = Checks(checker, Tally(), Log())
        tally, log = checks.tally, checks.log
        folder = arguments.logs or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        for i, (name, config) in enumerate(configs.items()):
            share = (i + 1) / len(configs)
            rates[name] = soak(config, arguments, share, folder=folder, checks=checks)
        tally.add(checker.take(wait=True))
    result = {
        "measures": "sampled positions held to the contract, and the largest deviation in nats",
        "command": command("soak"),
        "date": date(),
        "commit": commit(),
        **machine(),
        **versions("sglang", "torch"),
        "seed": arguments.seed,
        "tolerance": TOLERANCE,
        "positions": tally.positions,
        "configurations": {
            name: vars(row) | rates[name] for name, row in tally.configurations.items()
        },
        "kinds": {name: vars(row) for name, row in sorted(tally.kinds.items())},
        "events": dict(sorted(log.events.items())),
        "deviations": len(tally.failures),
        "first_deviations": tally.failures[:50],
        "errors": len(log.wrong),
        "first_errors": log.wrong[:5],
    }
    print(json.dumps(result, indent=1))
    if arguments.out:
        write_result(arguments.out, result)
    return int(bool(tally.failures or log.wrong))


@dataclass
class Checks:
    """Who checks, and what was found."""

    checker: Checker
    tally: Tally
    log: Log


def soak(
    config: Config, arguments: argparse.Namespace, share: float, *, folder: Path, checks: Checks
) -> dict[str, Any]:
    """Serve a configuration and send it waves until its share of the whole is done."""
    checker, tally, log = checks.checker, checks.tally, checks.log
    deltas = "--incremental-streaming-output" in config.flags
    schedule = Schedule(config.name, arguments.seed, stream_tokens=40 if deltas else 10)
    with Served(config, folder, log) as served:
        driver = Driver(served, checker.put, log)
        began = time.monotonic()
        number = 0
        while not _is_done(arguments, share, tally, began):
            kill = number % arguments.kill_every == arguments.kill_every - 1
            driver.wave(schedule.wave(number, kill=kill))
            tally.add(checker.take(wait=False))
            number += 1
            seconds = time.monotonic() - began
            row = tally.configurations.get(config.name, Row())
            print(
                f"{config.name}: wave {number}, {row.positions} positions, {seconds:.0f} s, "
                f"largest {row.largest:.1e}, {len(tally.failures)} deviations, "
                f"{len(log.wrong)} errors",
                file=sys.stderr,
                flush=True,
            )
        return {"waves": number, "seconds": round(seconds), "starts": served.starts}


def _is_done(arguments: argparse.Namespace, share: float, tally: Tally, began: float) -> bool:
    if arguments.minutes is not None:
        count = len(arguments.configuration or NAMES)
        return time.monotonic() - began > 60 * arguments.minutes / count
    return tally.positions >= arguments.positions * share


if __name__ == "__main__":
    sys.exit(main())
