"""Count the kernels' compilations after the warm-up: a server that serves must see none.

Run by scripts/gpu-check, once for each size of window and set of draft tree sizes, each in a
process of its own, since what is compiled once stays. With --rehearse nothing is launched: the
kernels are compiled for Hopper, by the same decisions of when to compile anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

BATCHES = (1, 2, 15, 16, 17)
VOCABS = (1, 16, 2048, 151_937)
LOGITS = torch.float32
"""The only type that upstream's logits have where the penalty is applied."""


def compile_only() -> None:
    """Make Triton compile for Hopper without a GPU, and launch nothing."""
    from triton.runtime.jit import JITFunction

    hopper = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    triton.runtime.driver.set_active(hopper)
    run: Callable[..., Any] = JITFunction.run

    def run_nothing(self: Any, *args: Any, **options: Any) -> None:
        # It returns no binary, so that `Kernel` asks again instead of launching it.
        run(self, *args, **options | {"warmup": True})

    JITFunction.run = run_nothing


def count(programs: list[str]) -> None:
    """Append the name of every kernel that Triton compiles, or loads from its cache, to a list."""

    def note(*, fn: Any, **_: Any) -> None:
        programs.append(fn.name)

    triton.knobs.runtime.jit_post_compile_hook = note


def warm_up(device: torch.device, capacity: int, tree_sizes: list[int]) -> None:
    """Do the warm-up that a server does before serving; arguments as in `serve`."""
    from sglang_lz.penalty import kernels
    from sglang_lz.penalty.kernels import cuda as cuda_kernels

    kernels.warm_up(cuda_kernels, capacity, device, tree_sizes)


def serve(device: torch.device, capacity: int, tree_sizes: list[int]) -> int:
    """Call the kernels with all inputs that a server may have; return the number of calls.

    Args:
        device: the device of the tensors.
        capacity: the capacity of the windows in tokens.
        tree_sizes: the numbers of nodes of the draft trees; empty without speculation.
    """
    from sglang_lz.penalty.kernels import cuda as cuda_kernels
    from sglang_lz.penalty.window import WindowState

    calls = 0
    state = WindowState(max(BATCHES), capacity, device)
    usual = min(512, capacity)
    for batch, vocab, width in itertools.product(
        BATCHES, VOCABS, sorted({1, usual, min(usual + 1, capacity), capacity})
    ):
        # Includes a slice, whose address and strides are not divisible by 16.
        rows = torch.arange(batch + 1, device=device)[1:] % len(state.tokens)
        lengths = torch.ones_like(rows)
        for logits in (
            torch.zeros(batch, vocab, dtype=LOGITS, device=device),
            torch.zeros(batch, vocab + 3, dtype=LOGITS, device=device)[:, 1 : vocab + 1],
        ):
            for prefilled, offset in ((0, 0), (0, 1), (0, 16), (1, 0), (batch, 0)):
                cuda_kernels.step(
                    state,
                    logits,
                    request_rows=rows,
                    seq_lens=lengths,
                    input_ids=torch.zeros(batch + offset, dtype=torch.int64, device=device),
                    prefilled=prefilled,
                    offset=offset,
                    width=width,
                )
                calls += 1
        for nodes in tree_sizes:
            # Upstream's tensors for a tree and its maximum depth, with upstream's dtypes.
            tree = torch.zeros(batch, nodes, dtype=torch.int64, device=device)
            logits = torch.zeros(batch * nodes, vocab, dtype=LOGITS, device=device)
            for depth in sorted({1, nodes}):
                paths = cuda_kernels.verify(
                    state,
                    logits,
                    request_rows=rows,
                    root=lengths,
                    tokens=tree,
                    first_child=tree - 1,
                    next_sibling=tree - 1,
                    depth=depth,
                    width=width,
                )
                cuda_kernels.accept(
                    state,
                    request_rows=rows,
                    root=lengths,
                    paths=paths,
                    accept_index=torch.zeros(batch, depth, dtype=torch.int32, device=device),
                    num_correct_drafts=torch.zeros(batch, dtype=torch.int32, device=device),
                    width=width,
                )
                calls += 2
    return calls


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the result, JSON")
    parser.add_argument("--window", type=int, default=1024, help="the largest (default: 1024)")
    parser.add_argument("--nodes", type=int, nargs="*", default=[], help="sizes of draft trees")
    parser.add_argument("--rehearse", action="store_true", help="compile only, without a GPU")
    given = parser.parse_args()
    device = torch.device("cpu" if given.rehearse else "cuda")
    if given.rehearse:
        compile_only()
    programs: list[str] = []
    count(programs)
    warm_up(device, given.window, given.nodes)
    warm = list(programs)
    calls = serve(device, given.window, given.nodes)
    late = programs[len(warm) :]
    result = {
        "window": given.window,
        "tree sizes": given.nodes,
        "logits": str(LOGITS),
        "triton": triton.__version__,
        "warm-up": warm,
        "calls": calls,
        "after warm-up": late,
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(warm)} programs at warm-up, {len(late)} in {calls} calls after it")
    if not warm:
        sys.exit("the warm-up compiled nothing: the count says nothing")
    if late:
        sys.exit(f"compiled after the warm-up: {', '.join(late)}")


if __name__ == "__main__":
    main()
