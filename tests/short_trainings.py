"""Short trainings of the models of `sglang_lz.demo`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch


def trained_twice(main: Callable[[list[str]], object], folder: Path, shipped: Path) -> Path:
    """Train twice with one seed, and compare what is written.

    Args:
        main: the training's command line.
        folder: where to.
        shipped: the model of the package, which has the same files and a page about them.

    Returns:
        The folder of one of the two, which are the same.
    """
    runs = [folder / "first", folder / "second"]
    threads = torch.get_num_threads()
    try:
        for run in runs:
            main(["--out", str(run), "--steps", "2"])
    finally:
        torch.set_num_threads(threads)
    first, second = (
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in run.iterdir()}
        for run in runs
    )
    assert first == second
    assert set(first) == {file.name for file in shipped.iterdir()} - {"README.md"}
    return runs[0]
