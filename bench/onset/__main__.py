"""The command line: `python -m bench.onset --out FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench import common
from bench.onset import guarantee


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m bench.onset", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    result: dict[str, Any] = {
        "measures": "the most copies of any loop",
        **common.provenance("bench.onset"),
        **common.versions("torch", "numba"),
    }
    common.write_result(arguments.out, result | guarantee.measure())


if __name__ == "__main__":
    main()
