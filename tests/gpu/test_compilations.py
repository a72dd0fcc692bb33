"""A server's kernels compile during its warm-up and never later.

Without a GPU nothing is launched: the kernels are compiled for Hopper, as Triton decides itself.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from device import DEVICE

BATCHES = (1, 2, 15, 16, 17)
VOCABS = (1, 16, 2048, 151_937)


@pytest.mark.full
@pytest.mark.parametrize(
    ("window", "nodes"), [(1024, []), (8192, []), (1024, [1, 2, 4, 6, 8, 16, 64])]
)
def test_nothing_compiles_after_the_warm_up(window: int, nodes: list[int], tmp_path: Path) -> None:
    """In a process of its own, because compiled kernels stay."""
    found = count(window, nodes, nodes, tmp_path)
    assert found[0] != "[]"
    assert found[1] == "[]"


@pytest.mark.full
def test_a_late_compilation_is_seen(tmp_path: Path) -> None:
    assert count(1024, [], [2], tmp_path)[1] == "['_accept_kernel', '_verify_kernel']"


def count(window: int, warmed: list[int], served: list[int], cache: Path) -> list[str]:
    """The names of the kernels compiled by the warm-up and afterwards, a line for each."""
    folders = [*sys.path, str(Path(__file__).parent)]
    call = f"import sys; sys.path[:] = {folders}; import test_compilations as t; "
    call += f"t.main({window}, {warmed}, {served})"
    env = os.environ | {"TRITON_CACHE_DIR": str(cache)}
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", call]
    return subprocess.run(
        command, env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()


def compile_only() -> None:
    """Make Triton compile for Hopper without a GPU, and launch nothing."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    hopper = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    triton.runtime.driver.set_active(hopper)
    run: Any = JITFunction.run

    def run_nothing(self: Any, *args: Any, **options: Any) -> None:
        # It returns no binary, so that `Kernel` asks again instead of launching it.
        run(self, *args, **options | {"warmup": True})

    JITFunction.run = run_nothing


def main(window: int, warmed: list[int], served: list[int]) -> None:
    """Warm the kernels up, call them with every input that a server may have, and print."""
    import triton

    from sglang_lz.penalty import kernels
    from sglang_lz.penalty.kernels import cuda as cuda_kernels

    if DEVICE == "cpu":
        compile_only()
    programs: list[str] = []
    triton.knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: programs.append(fn.name)
    kernels.warm_up(cuda_kernels, window, torch.device(DEVICE), warmed)
    print(sorted(set(programs)))
    programs.clear()
    serve(cuda_kernels, window, served)
    print(sorted(set(programs)))


def serve(cuda_kernels: Any, capacity: int, tree_sizes: list[int]) -> None:
    """Call the kernels with all kinds of batches, strides, windows and draft trees."""
    from sglang_lz.penalty.draft_tree import AcceptedPaths, DraftTrees
    from sglang_lz.penalty.window import StepInputs, WindowState

    state = WindowState(max(BATCHES), capacity, torch.device(DEVICE))
    widths = sorted({1, min(512, capacity), min(513, capacity), capacity})
    for batch, vocab, width in itertools.product(BATCHES, VOCABS, widths):
        # Includes a slice, whose address and strides are not divisible by 16.
        rows = torch.arange(batch + 1, device=DEVICE)[1:] % len(state.tokens)
        lengths = torch.ones_like(rows)
        whole = torch.zeros(batch, vocab, device=DEVICE)
        for logits, (prefilled, offset) in itertools.product(
            (whole, torch.zeros(batch, vocab + 3, device=DEVICE)[:, 1 : vocab + 1]),
            ((0, 0), (0, 1), (0, 16), (1, 0), (batch, 0)),
        ):
            ids = torch.zeros(batch + offset, dtype=torch.int64, device=DEVICE)
            step = StepInputs(rows, lengths, ids, prefilled=prefilled, offset=offset)
            cuda_kernels.step(state, logits, step, width=width)
        for nodes in tree_sizes:
            # Upstream's tensors for a tree and its maximum depth, with upstream's dtypes.
            tree = torch.zeros(batch, nodes, dtype=torch.int64, device=DEVICE)
            logits = torch.zeros(batch * nodes, vocab, device=DEVICE)
            for depth in sorted({1, nodes}):
                trees = DraftTrees(rows, lengths, tree, tree - 1, tree - 1, depth)
                paths = cuda_kernels.verify(state, logits, trees, width=width)
                index = torch.zeros(batch, depth, dtype=torch.int32, device=DEVICE)
                correct = torch.zeros(batch, dtype=torch.int32, device=DEVICE)
                accepted = AcceptedPaths(rows, lengths, paths, index, correct)
                cuda_kernels.accept(state, accepted, width=width)
