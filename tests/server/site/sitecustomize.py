"""Imported first by every process of a server under test: watches it, and helps it run on a CPU.

Python imports a module of this name from PYTHONPATH at its start. Each hook changes one module
right after its import.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from after_import import AfterImport, fork_children


def record_digests(sampling: ModuleType) -> None:
    """Append a line for each penalised step to the file of this rank in LZ_TEST_NOTES."""
    import torch

    apply_step = sampling.apply_step

    def note(hook: str, step: Any, request_rows: torch.Tensor, logits: torch.Tensor) -> None:
        folder = os.environ.get("LZ_TEST_NOTES")
        if step is None or not folder:
            return
        penalty = step.penalizer.state.params[request_rows, 0]
        digest = hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()
        path = Path(folder, f"{torch.distributed.get_rank()}.jsonl")
        with path.open("a") as file:
            file.write(json.dumps([hook, penalty.nonzero().flatten().tolist(), digest]) + "\n")

    def noted_apply(logits: torch.Tensor, forward_batch: Any) -> None:
        apply_step(logits, forward_batch)
        step = getattr(forward_batch, "lz_step", None)
        note("apply", step, forward_batch.req_pool_indices, logits)

    def noting(verify: Callable[..., Any]) -> Callable[..., Any]:
        def noted_verify(drafts: Any, batch: Any, logits: torch.Tensor, grammar_mask: Any) -> Any:
            verified = verify(drafts, batch, logits, grammar_mask)
            note("verify", verified and verified.plan, batch.req_pool_indices, logits)
            return verified

        return noted_verify

    sampling.apply_step = noted_apply
    sampling.verify_step = noting(sampling.verify_step)
    sampling.verify_block = noting(sampling.verify_block)


def pad_attention(torch_native: ModuleType) -> None:
    """Data-parallel attention pads batches; upstream's torch attention does not say with what."""
    torch_native.TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda self: 1


def keep_indices_on_host(conn: ModuleType) -> None:
    """Upstream's prefill server would copy page indices through pinned memory and CUDA events."""
    conn.MooncakeKVSender.supports_host_tensor_indices = False


def widen_first_logprobs(utils: ModuleType) -> None:
    """A prefill server hands over 128 logprobs of its token; the tests want the vocabulary's."""
    make = utils.MetadataBuffers.__init__
    utils.MetadataBuffers.__init__ = lambda self, *args, **kw: make(
        self, *args, **kw, max_top_logprobs_num=int(os.environ["LZ_TEST_TOP_LOGPROBS"])
    )


def forget_pinning(_: ModuleType) -> None:
    """LoRA pins host memory whatever the device; without an accelerator torch refuses."""
    import torch

    torch.Tensor.pin_memory = lambda self, *_: self
    for name in ("tensor", "zeros"):
        make = getattr(torch, name)

        def unpinned(*args: Any, make: Any = make, pin_memory: bool = False, **kw: Any) -> Any:
            return make(*args, **kw)

        setattr(torch, name, unpinned)


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "sglang_lz.scheduler.sampling": record_digests,
    "sglang.srt.entrypoints.engine": fork_children,
    "sglang.srt.layers.attention.torch_native_backend": pad_attention,
    "sglang.srt.lora.layers": forget_pinning,
    "sglang.srt.disaggregation.mooncake.conn": keep_indices_on_host,
    "sglang.srt.disaggregation.utils": widen_first_logprobs,
}

AfterImport(HOOKS).insert()
