"""Measure what the LZ penalty costs a server, as table 1 of the paper does, on this machine.

`static` decodes a fixed batch without a server, on upstream's model runner (`turns.py`): a batch
without the penalty and one with it, in one process, taking turns of a few steps. `--beside waiting
frequency upstream` adds batches with the penalty that waits for a loop, with this build's frequency
penalty, and with upstream's frequency and repetition penalties. `live` starts a server (or takes
--base-url) and runs upstream's serving benchmark at request rates. Models are public architectures
with dummy weights, because the cost does not depend on what the tokens say; with --model-path they
are real.

    python -m bench.serving static --out bench/results/serving-static.json
    python -m bench.serving static --models NAME --model-path NAME=DIR --batch-size 8 64 --out FILE
    python -m bench.serving live --out bench/results/serving-live.json

Runs come in blocks of four: off, on, on, off. A machine that slows down or speeds up steadily
favours neither, because both have the same place on average. A block gives one slowdown; the result
is the median of the blocks and its confidence interval. With `--beside`, a block goes through all
variants and back. Finished blocks are kept beside the result file (.jsonl), and the same command
continues after them. Without a GPU, unless --models names others, this is a smoke test: the demo
model's architecture at a small size, which shows that the benchmark runs and nothing else.

Needs the Python that the patched sglang is installed for. Arguments after `--` go to sglang:
    python -m bench.serving static --tp 8 -- --attention-backend triton
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from bench.common import write_result
from bench.processes import ProcessError
from bench.records import RecordError
from bench.serving.arguments import parse, settings_of
from bench.serving.record import Record
from bench.serving.result import markdown, result_of, smoke_words
from bench.serving.runs import MEASURE, batch_sizes


def main() -> None:
    """Run the command line."""
    arguments = parse(sys.argv[1:], __doc__)
    # As Ctrl-C: the processes that are started here must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.smoke:  # a model so small that more threads only wait for each other
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        measure(arguments)
    except (ProcessError, RecordError) as error:
        raise SystemExit(f"bench.serving: {error}") from None


def measure(arguments: argparse.Namespace) -> None:
    """Measure the missing blocks of every model, and write the result file.

    Raises:
        ProcessError: a tool or a server failed.
        RecordError: the record beside the result file cannot be taken up.
    """
    from tqdm import tqdm

    settings = settings_of(arguments)
    if arguments.mode == "live":
        rows = len(arguments.models) * len(arguments.rates)
    else:
        batches = sum(len(batch_sizes(name, arguments)) for name in arguments.models)
        rows = batches * len(arguments.variants)
    with (
        Record(arguments.out.with_suffix(".jsonl"), settings) as record,
        tempfile.TemporaryDirectory(prefix="serving-") as work,
        tqdm(
            total=arguments.blocks * rows,
            initial=sum(map(len, record.blocks.values())),
            unit="block",
        ) as progress,
    ):
        for name in arguments.models:
            progress.set_description(name)
            MEASURE[arguments.mode](name, arguments, record, Path(work), progress)
        result = result_of(arguments, record, settings)
    write_result(arguments.out, result)
    print("\n".join(filter(None, [smoke_words(result), markdown(result)])))
