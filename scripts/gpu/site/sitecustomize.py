"""Imported first by every process of a server that scripts/_gpu_server.py starts: watches it.

Python imports a module of this name from PYTHONPATH at its start. Each function of `WATCHED` is
handed one module of ours right after its import. All is written into the folder that LZ_TEST_NOTES
names, in files that begin with the process's id, so that each rank has its own.

Nothing here waits for the device while requests run, or what is to be seen might go away.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from after_import import AfterImport, fork_children

TREES = 200
"""So many batches of draft trees are recorded at most."""
WRITE = "write"
"""A file of this name asks for what is recorded."""


def append(name: str, line: Any) -> None:
    """Append a line of JSON to this process's file of that name."""
    with Path(os.environ["LZ_TEST_NOTES"], f"{os.getpid()}-{name}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def note_compilations(cuda_kernels: ModuleType) -> None:
    """Append a line for each of our kernels that Triton compiles or loads from its cache."""
    from triton import knobs

    before = knobs.runtime.jit_post_compile_hook

    def note(**event: Any) -> Any:
        if event["fn"].module == cuda_kernels.__name__:
            append("compiled", event["repr"])
        return before(**event) if before else None

    knobs.runtime.jit_post_compile_hook = note


def record_trees(sampling: Any) -> None:
    """Keep the logits of batches of drafts before and after the penalty, until `WRITE`."""
    kept: list[tuple[list[str], dict[str, Any]]] = []
    written = False

    def record(name: str, nodes_of: Callable[[Any], dict[str, Any]]) -> None:
        verify = getattr(sampling, name)

        def recording(drafts: Any, batch: Any, logits: Any, grammar_mask: Any) -> Any:
            nonlocal written
            if written or logits is None:
                return verify(drafts, batch, logits, grammar_mask)
            if Path(os.environ["LZ_TEST_NOTES"], WRITE).exists():
                write(kept)
                written = True
            before = logits.clone()
            verified = verify(drafts, batch, logits, grammar_mask)
            if verified is not None and len(kept) < TREES:
                tensors = {
                    "before": before,
                    "after": logits.clone(),
                    "root": batch.seq_lens.clone(),
                    **nodes_of(drafts),
                }
                kept.append(([req.rid for req in batch.reqs], tensors))
            return verified

        setattr(sampling, name, recording)

    record("verify_step", nodes_of_trees)
    record("verify_block", nodes_of_blocks)


def nodes_of_trees(trees: Any) -> dict[str, Any]:
    """Tokens and links of draft trees, each [batch, nodes]."""
    return {
        "tokens": trees.draft_token.view(-1, trees.draft_token_num).clone(),
        "first_child": trees.retrieve_next_token.clone(),
        "next_sibling": trees.retrieve_next_sibling.clone(),
    }


def nodes_of_blocks(tokens: Any) -> dict[str, Any]:
    """The same of blocks, whose tokens are chains."""
    first_child = (tokens * 0 + 1).cumsum(1)
    first_child[:, -1] = -1
    return {
        "tokens": tokens.clone(),
        "first_child": first_child,
        "next_sibling": tokens * 0 - 1,
    }


def write(kept: Sequence[tuple[list[str], dict[str, Any]]]) -> None:
    """Write recorded trees: for each a file of arrays and a line that names it; a line at last."""
    import numpy as np

    for number, (rids, tensors) in enumerate(kept):
        path = Path(os.environ["LZ_TEST_NOTES"], f"{os.getpid()}-{number}.npz")
        np.savez(path, **{name: tensor.cpu().numpy() for name, tensor in tensors.items()})
        append("trees", {"file": path.name, "requests": rids})
    append("written", len(kept))


def time_prefills(sampling: Any) -> None:
    """Append a line for each prefill with a penalty: what planning and applying took the host.

    On CUDA also from the first to the last thing that applying gave the stream to do. Seconds.
    """
    plan_step, apply_step = sampling.plan_step, sampling.apply_step
    open_spans: list[tuple[dict[str, Any], Any, Any]] = []

    def planned(batch: Any, runner: Any, forward_batch: Any) -> None:
        began = time.perf_counter()
        plan_step(batch, runner, forward_batch)
        spent = time.perf_counter() - began
        if batch.forward_mode.is_extend() and getattr(forward_batch, "lz_step", None) is not None:
            requests = sum(req.sampling_params.lz_params is not None for req in batch.reqs)
            forward_batch.lz_check = {"requests": requests, "plan": spent}

    def applied(logits: Any, forward_batch: Any) -> None:
        line = getattr(forward_batch, "lz_check", None)
        if line is None:
            apply_step(logits, forward_batch)
            while open_spans and open_spans[0][2].query():
                done, start, end = open_spans.pop(0)
                append("prefills", done | {"stream": start.elapsed_time(end) / 1e3})
            return
        start = end = None
        if logits.is_cuda:
            import torch

            event: Any = torch.cuda.Event
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
        began = time.perf_counter()
        apply_step(logits, forward_batch)
        line["apply"] = time.perf_counter() - began
        if end is None:
            append("prefills", line)
        else:
            end.record()
            open_spans.append((line, start, end))

    sampling.plan_step, sampling.apply_step = planned, applied


def note_splits(sampling: Any) -> None:
    """Append a line for each batch with a penalty that upstream ran as two."""
    apply_step = sampling.apply_step

    def applied(logits: Any, forward_batch: Any) -> None:
        apply_step(logits, forward_batch)
        if forward_batch.tbo_children and getattr(forward_batch, "lz_step", None) is not None:
            append("splits", len(forward_batch.tbo_children))

    sampling.apply_step = applied


def watch_sampling(sampling: ModuleType) -> None:
    """Watch upstream's calls into our sampling, as far as LZ_GPU_WATCH asks for it."""
    watches = {"trees": record_trees, "prefills": time_prefills, "splits": note_splits}
    watch = watches.get(os.environ["LZ_GPU_WATCH"])
    if watch is not None:
        watch(sampling)


def exhaust_memory(window: ModuleType) -> None:
    """Where LZ_GPU_WATCH says so: make the windows larger than any memory."""
    if os.environ["LZ_GPU_WATCH"] != "memory":
        return
    make = window.WindowState.__init__

    def make_too_large(self: Any, rows: int, *args: Any, **options: Any) -> None:
        # One row is the warm-up's, no server's.
        make(self, rows << 32 if rows > 1 else rows, *args, **options)

    window.WindowState.__init__ = make_too_large


def capture_for_blocks(qwen2: ModuleType) -> None:
    """Let DFLASH and DSPARK draft for the demo model, as the CPU flavour's block-drafts does."""
    model = qwen2.Qwen2ForCausalLM
    if not hasattr(model, "set_dflash_layers_to_capture"):
        model.set_dflash_layers_to_capture = model.set_eagle3_layers_to_capture


WATCHED: dict[str, Callable[[ModuleType], None]] = {
    "sglang_lz.penalty.kernels.cuda": note_compilations,
    "sglang_lz.sampling": watch_sampling,
    "sglang_lz.penalty.window": exhaust_memory,
    "sglang.srt.models.qwen2": capture_for_blocks,
    "sglang.srt.entrypoints.engine": fork_children,
}

if "LZ_GPU_WATCH" in os.environ:
    AfterImport(WATCHED).insert()
