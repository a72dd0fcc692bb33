"""Hostile requests beside an ordinary stream: what was answered, and what the others paid.

    python -m hostile --out bench/results/hostile.json
    python -m hostile --list
    python -m hostile --only "counted*" --only ids --server demo
    python -m hostile --url http://127.0.0.1:30000 --only "breakers*"

It starts two servers in turn, one with the demo model and one with a random model of two layers
and a tokenizer of 100,000 tokens, which is trained at first and kept. A greedy stream, short
requests and requests of /health go on all the time, and beside them one attack after another is
sent. What is promised: one client, whatever it sends, at most doubles the waiting time of another's
next token for at most a second, and takes at most 256 MB that it does not give back. The exit
status is 1 if that is broken. A server that was harmed is started again before the next attack.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.common import command, commit, date, machine, versions, write_result
from bench.http_client import HTTP
from hostile import judge
from hostile.answers import NOT_SENT, is_right, shown, timed
from hostile.attacks import BOTH, DEMO, ORDINARY, Attack, attacks, ordinary, sampled
from hostile.servers import Target, serving
from hostile.watch import KINDS, TOKEN, Memory, Watch, megabytes

BEFORE_SECONDS = 1.5
ATTACK_SECONDS = 20.0
"""What is not answered by then is left."""
SETTLE_SECONDS = 1.0
RECOVERY_SECONDS = 15.0
"""So long the server may take to go on with the stream, and to give memory back."""
LIMIT_MB = 3000.0
"""An attack is stopped, with its server, when it has taken so much."""

Waits = dict[str, float]
"""Seconds, by kind, and the sum of those that are too long."""


def watched(watch: Watch, begin: float, end: float) -> Waits:
    """What others wait in a time, as a rule, by kind."""
    return {kind: judge.usual(watch.between(kind, begin, end)) for kind in KINDS}


def run(
    attack: Attack, target: Target, watch: Watch, usual: Waits, seconds: float
) -> tuple[dict[str, Any], Attack | None]:
    """Send an attack and wait until its effects are over or time is up.

    Args:
        attack: what is sent.
        target: the server.
        watch: its other clients.
        usual: waits beside as many ordinary requests; to be filled in by those themselves.
        seconds: after which what is not answered is left.

    Returns:
        What it did, and what of it is still to be sent; None if all was.
    """
    time.sleep(BEFORE_SECONDS)
    began = time.monotonic()
    before = watched(watch, began - BEFORE_SECONDS, began)
    mb_before = megabytes(target.pid)
    stopped: list[str] = []

    def stop() -> None:
        stopped.append(f"{LIMIT_MB:.0f} MB taken")
        target.kill()

    with Memory(target.pid, mb_before + LIMIT_MB, stop) as memory:
        deadline = began + seconds
        with ThreadPoolExecutor(attack.at_once) as pool:
            sent = list(pool.map(lambda one: timed(target, one, deadline), attack.requests))
        ended = time.monotonic()
        time.sleep(SETTLE_SECONDS)
        while time.monotonic() < ended + RECOVERY_SECONDS and target.lives:
            kept = megabytes(target.pid) - mb_before
            if watch.token_since(ended) and kept <= judge.KEPT_MB:
                break
            time.sleep(0.2)
        over = time.monotonic()
        mb_after = megabytes(target.pid)
    during = watched(watch, began, over)
    tokens = watch.between(TOKEN, began, over)
    if attack.item == ORDINARY:
        usual |= {**during, "slow": judge.slow(tokens, during[TOKEN])}
    held_to = {kind: max(before.get(kind, 0.0), wait) for kind, wait in usual.items()}
    counted: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    bodies: dict[str, str] = {}
    for request, (answer, _) in zip(attack.requests, sent, strict=True):
        if answer == NOT_SENT:
            continue
        right = is_right(answer, attack)
        counted[right][answer] += 1
        if not right:
            bodies.setdefault(answer, shown(request))
    slowest = max(range(len(sent)), key=lambda i: sent[i][1])
    row = {
        "server": "",
        "item": attack.item,
        "attack": attack.name,
        "answers": [{"answer": one, "times": n} for one, n in counted[True].most_common()],
        "wrong": [
            {"answer": one, "times": n, "request": bodies[one]}
            for one, n in counted[False].most_common()
        ],
        "seconds": sent[slowest][1],
        "slowest": shown(attack.requests[slowest]),
        "quiet": before[TOKEN],
        "held_to": held_to,
        "longest": {kind: max(watch.between(kind, began, over)) for kind in KINDS},
        "slow": judge.slow(tokens, held_to[TOKEN]),
        "mb_before": mb_before,
        "mb_peak": max(memory.peak, mb_after),
        "mb_after": mb_after,
        "failed": watch.failed(began, over),
        "lived": target.lives,
        "streams": watch.token_since(ended),
        "stopped": stopped[0] if stopped else None,
    }
    unsent = [
        one for one, (answer, _) in zip(attack.requests, sent, strict=True) if answer == NOT_SENT
    ]
    rest = replace(attack, requests=tuple(unsent)) if unsent else None
    return rounded(row), rest


def rounded(value: Any) -> Any:
    """A value with its floats to four places, or to none of those that are large."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, float):
        return round(value, 4 if value < 100 else 1)
    return value


def warm_up(url: str) -> None:
    """Have done once what the first request of a kind pays for."""
    for fields in ({}, {"dry_multiplier": 0.1}, {"regex": "[a-z]{1,9}", "proper_tokens": True}):
        HTTP.post(f"{url}/generate", json=sampled(**fields)).raise_for_status()


def attack_all(
    found: list[Attack], name: str, at: Target, seconds: float, brief: bool
) -> Iterator[dict[str, Any]]:
    """Try attacks in turn, on a server that none before them has harmed for good.

    Args:
        found: what is tried, behind as many ordinary requests at once.
        name: of the server.
        at: the server.
        seconds: after which an attack is left.
        brief: leave what an attack has not sent before it harmed the server.
    """
    usual: dict[tuple[int, int], Waits] = {one.held_to: {} for one in found}
    left = [*(ordinary(name, *like) for like in sorted(usual)), *found]
    while left:
        warm_up(at.url)
        with Watch(at.url) as watch:
            while left:
                attack = left.pop(0)
                row, rest = run(attack, at, watch, usual[attack.held_to], seconds)
                yield row | {"server": name}
                left[:0] = [rest] if rest and not brief else []
                if judge.harmed(row):
                    break
        if left:
            at.restart()


def main() -> int:
    """Run the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        "python -m hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="attacks, * for any text")
    parser.add_argument("--server", action="append", choices=BOTH, help="default: each in turn")
    parser.add_argument("--url", help="a server of this machine to attack in the demo's place")
    parser.add_argument("--seed", type=int, default=0, help="of the random attacks")
    parser.add_argument(
        "--brief", action="store_true", help="end an attack where it harms the server"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=ATTACK_SECONDS,
        help="for an attack; give more on a machine that is busy (default: %(default)g)",
    )
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    parser.add_argument("--logs", type=Path, help="new folder for the servers' logs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the server, too
    names = [DEMO] if arguments.url else arguments.server or list(BOTH)
    result: dict[str, Any] = {
        "measures": "hostile requests beside an ordinary stream: waits in seconds, memory in MB",
        "command": command("hostile"),
        "date": date(),
        "commit": commit(),
        **machine(),
        **versions("sglang", "torch", "xgrammar", "tokenizers"),
        "seed": arguments.seed,
        "rows": [],
    }
    with tempfile.TemporaryDirectory(prefix="hostile-") as own:
        folder = arguments.logs or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            patterns = arguments.only or ["*"]
            found = [
                one
                for one in attacks(name, arguments.seed)
                if any(fnmatch(one.name, pattern) for pattern in patterns)
            ]
            if arguments.list:
                print(*(f"{name}\t{one.item}\t{one.name}" for one in found), sep="\n")
                continue
            if not found:
                continue
            with serving(name, arguments.url, folder) as at:
                for row in attack_all(found, name, at, arguments.seconds, arguments.brief):
                    result["rows"].append(row)
                    print(judge.markdown({"rows": [row]}).splitlines()[-1], flush=True)
                    for one in row["wrong"]:
                        print(f"  {one['answer']}  <- {one['request'][:200]}", flush=True)
                    if arguments.out:
                        write_result(arguments.out, result)
    if not result["rows"]:
        return 0
    print(judge.summary(result))
    return int(any(judge.breaches(row) for row in result["rows"]))


if __name__ == "__main__":
    sys.exit(main())
