"""Soak: drive real servers with random schedules, and hold every sampled position to the oracle.

    python -m soak --positions 1000000 --out bench/results/soak.json

It starts a server of each configuration in turn and sends it waves of random requests: many at
once, with penalties of all kinds, streams, aborts, clients that leave, pauses, refused requests. In
some waves the server is killed and started again. Whatever comes back with logprobs, whole or in
part, must obey the contract at every position (docs/SPEC.md, section 7): `tests/soak/check.py`. The
exit status is 1 if anything deviates, is refused without reason, or does not come.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import command, commit, date, machine, versions, write_result
from bench.processes import ProcessError
from server.configurations import CONFIGURATIONS
from server.launch import Config
from server.summary import TOLERANCE
from soak.check import Checker, Verdict
from soak.drive import Driver, Log, Served
from soak.faults import CACHE, FAULTS, folder_with, limit
from soak.schedule import WAVE_SIZE, Schedule

SHARES = {
    "overlap": 0.25,
    "no-overlap": 0.2,
    "mixed-chunk": 0.1,
    "tiny-pool": 0.2,
    "ngram": 0.15,
    "eagle-tree": 0.1,
}
"""Of the positions by configuration; speculation takes the server two to three times as long."""
MORE_FLAGS = {
    "no-overlap": ("--incremental-streaming-output",),
    "ngram": ("--incremental-streaming-output",),
}
DELTAS = "--incremental-streaming-output"
FAULTY = "no-overlap"
"""What is served with each fault; it prepares for proper tokens at its start."""
KEPT = 5
"""Deviations and errors that a result file has in full."""
KILL_EVERY = 10
"""Waves; the server is killed in the second of so many."""
FEWEST = 2
"""Waves of a configuration, however few positions it is asked for: one is killed, one is not."""


@dataclass
class Row:
    """What was checked of a configuration, or of a kind of positions."""

    positions: int = 0
    tokens: int = 0
    largest: float = 0.0
    beyond: int = 0

    def add(self, verdict: Verdict) -> None:
        """Count a verdict."""
        self.positions += verdict.positions
        self.tokens += verdict.tokens
        self.largest = max(self.largest, verdict.deviation)
        self.beyond += verdict.beyond


def configuration(name: str, env: Mapping[str, str]) -> Config:
    """A configuration of the tests', as the soak serves it.

    Args:
        name: of `SHARES`.
        env: further environment variables.
    """
    config = CONFIGURATIONS[name]
    flags = (*config.flags, *MORE_FLAGS.get(name, ()), "--max-running-requests", "32")
    return replace(config, flags=flags, env=(*config.env, *env.items()))


@dataclass
class Run:
    """A run under way: what it was asked for, who checks, and what was found."""

    arguments: argparse.Namespace
    folder: Path
    checker: Checker
    configurations: dict[str, Row] = field(default_factory=dict)
    kinds: dict[str, Row] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    log: Log = field(default_factory=Log)
    rates: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def positions(self) -> int:
        """Of all configurations."""
        return sum(row.positions for row in self.configurations.values())

    def count(self, *, wait: bool) -> None:
        """Count the verdicts of the checker; the first failures are printed as they come."""
        for verdict in self.checker.take(wait=wait):
            self.configurations.setdefault(verdict.configuration, Row()).add(verdict)
            for kind in verdict.kinds:
                self.kinds.setdefault(kind, Row()).add(verdict)
            if verdict.failure is not None:
                self.failures.append(verdict.failure)
                if len(self.failures) <= 3:
                    print(json.dumps(verdict.failure), file=sys.stderr, flush=True)

    def result(self) -> dict[str, Any]:
        """What is found so far, as a result file has it."""
        log = self.log
        return {
            "measures": "sampled positions held to the contract, and the largest deviation in nats",
            "command": command("soak"),
            "date": date(),
            "commit": commit(),
            **machine(),
            **versions("sglang", "torch"),
            "seed": self.arguments.seed,
            "tolerance": TOLERANCE,
            "positions": self.positions,
            "tokens": sum(row.tokens for row in self.configurations.values()),
            "largest": max((row.largest for row in self.configurations.values()), default=0.0),
            "seconds": sum(rate["seconds"] for rate in self.rates.values()),
            "configurations": {
                name: vars(row) | self.rates.get(name, {})
                for name, row in self.configurations.items()
            },
            "kinds": {name: vars(row) for name, row in sorted(self.kinds.items())},
            "faults": self.faults,
            "events": dict(sorted(log.events.items())),
            "deviations": len(self.failures),
            "first_deviations": self.failures[:KEPT],
            "errors": len(log.wrong),
            "first_errors": log.wrong[:KEPT],
        }

    def write(self) -> None:
        """Write the result file, if one is asked for."""
        if self.arguments.out:
            write_result(self.arguments.out, self.result())

    def soak(self, config: Config, share: float) -> None:
        """Serve a configuration and send it waves until its share of the whole is done."""
        schedule = Schedule(
            config.name,
            self.arguments.seed,
            stream_tokens=40 if DELTAS in config.flags else 10,
            size=self.arguments.wave_size,
            mixes="--enable-mixed-chunk" in config.flags,
        )
        began = time.monotonic()
        before = self.positions
        try:
            with Served(config, self.folder, self.log) as served:
                driver = Driver(served, self.checker.put, self.log)
                number = 0
                while number < FEWEST or not self._is_done(share, before, began):
                    every = self.arguments.kill_every
                    kill = number % every == 1 % every
                    driver.wave(schedule.wave(number, kill=kill))
                    number += 1
                    self._note(config.name, number, began, served.starts)
        except ProcessError as error:
            self.log.error(f"{config.name}: the server does not start", log=str(error)[-4000:])
        self.count(wait=True)

    def fault(self, fault: str) -> None:
        """Serve with a fault of `soak.faults`: rightly, or not at all and say why."""
        folder = self.folder / fault.replace(" ", "-")
        with folder_with(fault, folder) as env:
            config = replace(configuration(FAULTY, env), name=fault)
            begun = partial(limit, fault, folder)
            try:
                with Served(config, self.folder, self.log, begun) as served:
                    schedule = Schedule(fault, self.arguments.seed, stream_tokens=40)
                    Driver(served, self.checker.put, self.log).wave(schedule.wave(0))
                self.faults[fault] = "served"
            except ProcessError as error:
                said = str(error)
                self.faults[fault] = f"did not start: {said.splitlines()[-1]}"
                if "Traceback" in said:
                    self.log.error(f"{fault}: the server does not say why", log=said[-4000:])
        self.count(wait=True)
        self.write()
        print(f"{fault}: {self.faults[fault]}", file=sys.stderr, flush=True)

    def _note(self, name: str, waves: int, began: float, starts: int) -> None:
        self.count(wait=False)
        seconds = round(time.monotonic() - began)
        self.rates[name] = {"waves": waves, "seconds": seconds, "starts": starts}
        self.write()
        row = self.configurations.get(name, Row())
        print(
            f"{name}: wave {waves}, {row.positions} positions, {seconds} s, "
            f"largest {row.largest:.1e}, {len(self.failures)} deviations, "
            f"{len(self.log.wrong)} errors",
            file=sys.stderr,
            flush=True,
        )

    def _is_done(self, share: float, before: int, began: float) -> bool:
        if self.arguments.minutes is not None:
            return time.monotonic() - began > 60 * self.arguments.minutes * share
        return self.positions - before >= self.arguments.positions * share


def main() -> int:
    """Run the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        "python -m soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--minutes", type=float, help="stop after so long")
    amount.add_argument("--positions", type=int, default=100_000, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--configuration", action="append", choices=SHARES, help="default: each in turn"
    )
    parser.add_argument(
        "--fault",
        action="append",
        choices=FAULTS,
        help="default: all, if no configuration is named",
    )
    parser.add_argument("--kill-every", type=int, default=KILL_EVERY, metavar="WAVES")
    parser.add_argument(
        "--wave-size", type=int, default=WAVE_SIZE, metavar="REQUESTS", help="default: %(default)s"
    )
    parser.add_argument(
        "--keep-caches",
        action="store_true",
        help="serve with what is compiled already; kills then meet nothing half written",
    )
    parser.add_argument("--logs", type=Path, help="new folder for the servers' logs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    names = arguments.configuration or list(SHARES)
    faults = arguments.fault or (() if arguments.configuration else FAULTS)
    whole = sum(SHARES[name] for name in names)
    with tempfile.TemporaryDirectory(prefix="soak-") as own, Checker() as checker:
        run = Run(arguments, arguments.logs or Path(own, "logs"), checker)
        run.folder.mkdir(parents=True)
        for fault in faults:
            run.fault(fault)
        # New ones, so that kills meet what is half written.
        new = {} if arguments.keep_caches else {CACHE: str(Path(own, "caches"))}
        for name in names:
            run.soak(configuration(name, new), SHARES[name] / whole)
    print(json.dumps(run.result(), indent=1))
    run.write()
    return int(bool(run.failures or run.log.wrong))


if __name__ == "__main__":
    sys.exit(main())
