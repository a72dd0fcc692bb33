"""Hold proper tokens to the published tokenizers, and measure them there.

    python -m bench.constraints.published --out bench/results/constraints/published.json

Each tokenizer of `bench.published` is refused with a reason, or checked as by
`bench.constraints.exact` and measured as by `bench.constraints`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.common import command, commit, date, machine, versions, write_result
from bench.constraints.__main__ import Proper, measure, timed, tokens_of
from bench.constraints.cases import CASES, TEXTS
from bench.constraints.exact import pairs, sequences
from bench.constraints.vocabularies import installed_texts, vocabulary
from bench.published import SOURCES, tokenizer_json
from proper_tokens.prepared import Prepared, prepared_arrays
from proper_tokens.tokenizer import Unsupported, read


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.constraints.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the rows)")
    parser.add_argument("--folder", type=Path, default=Path(".cache/vocabularies"))
    parser.add_argument(
        "--tokenizer",
        nargs="+",
        choices=SOURCES,
        default=list(SOURCES),
        help="which (default: all); what the file says of others is kept",
    )
    arguments = parser.parse_args()
    small = vocabulary("gpt2", 2048, arguments.folder)
    arrays = prepared_arrays(small)
    own = Prepared(arrays)
    # This loads what is compiled.
    measure(lambda *case: Proper(arrays, own, *case), CASES["date"], tokens_of(small, "date"))
    corpus = "".join(installed_texts(400_000))
    rows = {}
    if arguments.out and arguments.out.exists():
        rows = {row["tokenizer"]: row for row in json.loads(arguments.out.read_text())["rows"]}
    for name in arguments.tokenizer:
        row = {"tokenizer": name, "models": SOURCES[name].models}
        row |= {"date": date(), "commit": commit()}
        row |= look(tokenizer_json(name), corpus)
        rows[name] = row
        print(json.dumps(row), flush=True)
        result = {
            "measures": "proper tokens with published tokenizers; one at a time",
            "command": command("bench.constraints.published"),
            **machine(),
            **versions("tokenizers", "numba", "xgrammar"),
            "texts": TEXTS,
            "rows": [rows[name] for name in SOURCES if name in rows],
        }
        if arguments.out:
            write_result(arguments.out, result)


def look(text: str, corpus: str) -> dict[str, Any]:
    """What is wrong with a tokenizer and what it costs, or why it is refused."""
    row: dict[str, Any] = {"tokens": len(json.loads(text)["model"]["vocab"])}
    try:
        arrays, seconds = timed(prepared_arrays, text)
    except Unsupported as error:
        return {**row, "refused": str(error)}
    own, file = Prepared(arrays), read(text)
    row |= {"merges": len(file.merges), "prepare_seconds": round(seconds, 2)}
    row["cases"] = [
        {
            "case": case,
            **measure(lambda *kind: Proper(arrays, own, *kind), CASES[case], tokens_of(text, case)),
        }
        for case in CASES
    ]
    return row | pairs(text) | sequences(text, corpus)


if __name__ == "__main__":
    main()
