"""The tables on the other penalties, from the committed results; bench/README.md has most of them.

python -m bench.penalties.tables
"""

from __future__ import annotations

import json
from typing import Any

from bench.common import RESULTS


def load(name: str) -> Any:
    """A committed result."""
    return json.loads((RESULTS / name).read_text())


def rows_of(result: Any) -> list[dict[str, Any]]:
    """The rows of a result with columns."""
    return [dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"]]


def cost() -> str:
    """Microseconds of a step and bytes of a row's state, a line for each case."""
    rows = rows_of(load("penalties-cpu.json"))
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    cases = list(dict.fromkeys((row["rows"], row["vocab"], row["history"]) for row in rows))
    lines = [f"| rows | V | tokens | {' | '.join(names)} |", f"|{'---|' * (3 + len(names))}"]
    for case in cases:
        own = {
            row["implementation"]: row
            for row in rows
            if (row["rows"], row["vocab"], row["history"]) == case
        }
        cells = [
            f"{own[name]['median_us']:,.0f} us, {own[name]['row_bytes'] / 1024:,.0f} KiB"
            for name in names
        ]
        lines.append(f"| {' | '.join(f'{size:,}' for size in case)} | {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def exactness() -> str:
    """Wrong requests and the largest error, a line for each penalty and server."""
    lines = ["| server | penalty | wrong requests | largest error, nats |", "|---|---|---|---|"]
    lines += [_exactness(row) for row in load("exactness.json")["rows"]]
    return "".join(f"{line}\n" for line in lines)


def blocks() -> str:
    """The same of servers that speculate with DFLASH; also answers that loop, and drafts."""
    lines = [
        "| server | penalty | wrong requests | largest error, nats | loops | accept length |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"{_exactness(row)} {row['loops']} of {row['requests']} | {row['accept_length']:.2f} |"
        for row in load("exactness-dflash.json")["rows"]
    ]
    return "".join(f"{line}\n" for line in lines)


def _exactness(row: dict[str, Any]) -> str:
    penalty = ", ".join(f"`{name}` {value:g}" for name, value in row["penalty"].items())
    return (
        f"| {row['server']} | {penalty or 'none'} | {row['wrong']} of {row['requests']} | "
        f"{row['largest']:.2g} |"
    )


def sweep() -> str:
    """Accuracy and loops of each variant of the sweep."""
    return _scores("penalties-sweep")


def strengths() -> str:
    """Accuracy and loops of the best variants of the sweep, on other problems."""
    return _scores("penalties")


def _scores(name: str) -> str:
    result = load(f"{name}/result.json")
    cells = {(cell["variant"], cell["temperature"]): cell for cell in result["cells"]}
    lines = [
        "| penalty | accuracy, T = 0 | degenerate, T = 0 | accuracy, T = 0.7 | degenerate, T = 0.7 "
        "| unchanged, T = 0 |",
        "|---|---|---|---|---|---|",
    ]
    for variant in dict.fromkeys(cell["variant"] for cell in result["cells"]):
        at = [cells[variant, temperature] for temperature in (0.0, 0.7)]
        scores = [
            f"{cell[score]['mean']:.3f}" for cell in at for score in ("accuracy", "degenerate")
        ]
        against = at[0]["against_none"]
        share = "-" if against is None else f"{against['unchanged'] / at[0]['samples']:.2f}"
        lines.append(f"| {variant} | {' | '.join(scores)} | {share} |")
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    print(cost(), exactness(), sweep(), strengths(), sep="\n")
