"""Imported first by every process of a server that tests/gpu starts: watches its penalty.

Python imports a module of this name from PYTHONPATH at its start. Files go into the folder that
LZ_TEST_NOTES names. Nothing waits for the device while requests run, since that would hide races.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from after_import import AfterImport

STEPS = 200
"""So many steps are kept at most."""


def notes(name: str) -> Path:
    """A file of this process in the folder of the notes."""
    return Path(os.environ["LZ_TEST_NOTES"], f"{os.getpid()}-{name}")


def note_compilations(_: ModuleType) -> None:
    """Append a line for each of our kernels that Triton compiles or loads from its cache."""
    from triton import knobs

    def note(**event: Any) -> None:
        if event["fn"].module.startswith("lz_penalty.kernels."):
            with notes("compiled").open("a") as file:
                file.write(f"{event['repr']}\n")

    knobs.runtime.jit_post_compile_hook = note


def record_steps(sampling: Any) -> None:
    """Keep the logits before and after the penalty of every step that generates.

    They are written at the first step after a file `write` is there. A step without drafts is a
    tree of one node.
    """
    kept: list[tuple[list[str], dict[str, Any]]] = []

    def keep(rids: list[str], before: Any, after: Any, **tensors: Any) -> None:
        if len(kept) < STEPS:
            tensors |= {"before": before, "after": after}
            kept.append((rids, {name: tensor.clone() for name, tensor in tensors.items()}))
        if notes("").with_name("write").exists() and not notes("written").exists():
            import numpy as np

            for number, (requests, found) in enumerate(kept):
                arrays = {name: tensor.cpu().numpy() for name, tensor in found.items()}
                np.savez(notes(f"{number}.npz"), requests=np.array(requests), **arrays)
            notes("written").touch()

    apply_step = sampling.apply_step

    def applied(logits: Any, forward_batch: Any) -> None:
        before = logits.clone()
        apply_step(logits, forward_batch)
        is_penalised = getattr(forward_batch, "lz_step", None) is not None
        if is_penalised and forward_batch.forward_mode.is_decode():
            rows = len(forward_batch.rids)
            tokens = forward_batch.input_ids[:rows, None]
            links = {"first_child": tokens * 0 - 1, "next_sibling": tokens * 0 - 1}
            root = forward_batch.seq_lens[:rows] - 1
            keep(forward_batch.rids, before, logits, root=root, tokens=tokens, **links)

    def recording(verify: Any, nodes_of: Callable[[Any], dict[str, Any]]) -> Any:
        def verified(drafts: Any, batch: Any, logits: Any, grammar_mask: Any) -> Any:
            before = None if logits is None else logits.clone()
            found = verify(drafts, batch, logits, grammar_mask)
            if found is not None and before is not None:
                rids = [req.rid for req in batch.reqs]
                keep(rids, before, logits, root=batch.seq_lens, **nodes_of(drafts))
            return found

        return verified

    sampling.apply_step = applied
    sampling.verify_step = recording(sampling.verify_step, nodes_of_trees)
    sampling.verify_block = recording(sampling.verify_block, nodes_of_blocks)


def nodes_of_trees(trees: Any) -> dict[str, Any]:
    """Tokens and links of draft trees, each [batch, nodes]."""
    tokens = trees.draft_token.view(-1, trees.draft_token_num)
    links = {"first_child": trees.retrieve_next_token, "next_sibling": trees.retrieve_next_sibling}
    return {"tokens": tokens, **links}


def nodes_of_blocks(tokens: Any) -> dict[str, Any]:
    """The same of blocks, whose tokens are chains."""
    first_child = (tokens * 0 + 1).cumsum(1)
    first_child[:, -1] = -1
    return {"tokens": tokens, "first_child": first_child, "next_sibling": tokens * 0 - 1}


def capture_for_blocks(qwen2: ModuleType) -> None:
    """Let DFLASH and DSPARK draft for the demo model, as the CPU flavour's block-drafts does."""
    model = qwen2.Qwen2ForCausalLM
    if not hasattr(model, "set_dflash_layers_to_capture"):
        model.set_dflash_layers_to_capture = model.set_eagle3_layers_to_capture


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "lz_penalty.kernels.cuda": note_compilations,
    "sglang_lz.scheduler.sampling": record_steps,
    "sglang.srt.models.qwen2": capture_for_blocks,
}

AfterImport(HOOKS).insert()
