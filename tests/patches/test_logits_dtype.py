"""Why the kernels take float32 logits alone: upstream samples from nothing else.

All that reaches `ModelRunner.sample` and `eagle_sample` on CUDA and a CPU leaves
`LogitsProcessor._get_logits`, whatever the model computes in. A release that changes this fails
here, and the hooks would raise a TypeError.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROWS, HIDDEN = 3, 128


def get_logits(bench_runner: Any, dtype: torch.dtype, buffered: bool, **settings: Any) -> Any:
    """Run upstream's own last layer, with weights of this dtype and these settings."""
    from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    vocab = 64
    config = SimpleNamespace(vocab_size=vocab, **settings)
    processor = LogitsProcessor(config, logit_scale=0.5)
    lm_head = SimpleNamespace(weight=torch.randn(vocab, HIDDEN).to(dtype))
    buffer = torch.zeros(ROWS, vocab) if buffered else None
    metadata = LogitsMetadata(forward_mode=ForwardMode.DECODE, next_token_logits_buffer=buffer)
    return processor._get_logits(torch.randn(ROWS, HIDDEN).to(dtype), lm_head, metadata)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("settings", [{}, {"final_logit_softcapping": 30.0}], ids=str)
def test_the_last_layer_returns_float32_from_any_dtype(
    bench_runner: Any, dtype: torch.dtype, buffered: bool, settings: dict[str, Any]
) -> None:
    logits = get_logits(bench_runner, dtype, buffered, **settings)
    assert logits.shape == (ROWS, 64)
    assert logits.dtype == torch.float32


def test_the_buffer_of_captured_graphs_is_float32() -> None:
    from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput

    buffer = GraphSharedOutput.get_logits_buffer
    shared = SimpleNamespace(max_rows=ROWS, device="cpu", _logits_buffers={})
    assert buffer(shared, 64, rows=ROWS).dtype == torch.float32


# Where upstream makes what is sampled from, and why its dtype is float32 there or not our concern.
MAKERS = {
    "layers/logits_processor.py": "the one place",
    "model_executor/runner/prefill_cuda_graph_runner.py": "slices its own output",
    "model_executor/cpu_graph_runner.py": "slices its own output",
    "managers/scheduler_pp_mixin.py": "no logits: the last rank has sampled",
    "managers/utils.py": "no logits: the last rank has sampled",
    "speculative/eagle_draft_extend_cuda_graph_runner.py": "drafts",
    "speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py": "drafts",
    "models/gemma4_mtp.py": "drafts",
    "models/dflash.py": "drafts",
    "models/deepseek_v4_dspark.py": "drafts",
    "models/dspark_minimax.py": "drafts",
    "speculative/dflash_worker_v2.py": "drafts",
    "models/mindspore.py": "refused: Ascend",
    "hardware_backend/npu/graph_runner/npu_graph_runner.py": "refused: Ascend",
    "hardware_backend/mlx/tp_worker.py": "refused: Apple",
}


def test_only_known_modules_make_logits() -> None:
    """A model with a last layer of its own could sample from another dtype."""
    import sglang.srt

    root = Path(sglang.srt.__path__[0])
    sources = {path: path.read_text() for path in root.rglob("*.py")}

    def holding(pattern: str) -> set[str]:
        found = re.compile(pattern)
        return {str(path.relative_to(root)) for path in sources if found.search(sources[path])}

    made = holding(r"\bLogitsProcessorOutput\(")
    assert made == set(MAKERS)
    own_steps = r"def (_get_logits|_copy_logits_to_buffer|_gather_softcap_fused)\("
    assert holding(own_steps) == {"layers/logits_processor.py"}
