"""The tables on the soak, from the committed result; bench/README.md has the first of them.

python -m soak.tables
"""

from __future__ import annotations

import json
from typing import Any

from bench.common import RESULTS


def load() -> Any:
    """The committed result."""
    return json.loads((RESULTS / "soak.json").read_text())


def configurations(result: Any) -> str:
    """What was checked of each configuration, a line for each, and the sum."""
    lines = [
        "| server | positions | tokens only | positions a second | starts | largest deviation |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in result["configurations"].items():
        rate = f"{row['positions'] / row['seconds']:.0f}" if row.get("seconds") else "-"
        lines.append(
            f"| {name} | {row['positions']:,} | {row['tokens']:,} | {rate} | "
            f"{row.get('starts', 1)} | {row['largest']:.1e} |"
        )
    lines.append(
        f"| all | {result['positions']:,} | {result['tokens']:,} | "
        f"{result['positions'] / result['seconds']:.0f} | | {result['largest']:.1e} |"
    )
    return "".join(f"{line}\n" for line in lines)


def kinds(result: Any) -> str:
    """Positions by what they were, a line for each; one position may be of several kinds."""
    lines = ["| positions that were | | largest deviation |", "|---|---|---|"]
    for name, row in result["kinds"].items():
        count = row["positions"] + row["tokens"]
        lines.append(f"| {name} | {count:,} | {row['largest']:.1e} |")
    return "".join(f"{line}\n" for line in lines)


def events(result: Any) -> str:
    """How often what happened, a line for each."""
    lines = ["| what happened | times |", "|---|---|"]
    lines += [f"| {name} | {count:,} |" for name, count in result["events"].items()]
    return "".join(f"{line}\n" for line in lines)


TABLES = {"configurations": configurations, "kinds": kinds, "events": events}


def main() -> None:
    """Print all tables."""
    result = load()
    for name, make in TABLES.items():
        print(f"<!-- soak-{name} -->\n{make(result)}<!-- /soak-{name} -->\n")


if __name__ == "__main__":
    main()
