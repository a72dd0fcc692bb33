"""Environment variables that make an SGLang process run on the CPU.

Called by the first lines of `sglang/__init__.py` in the CPU wheel (patches/cpu/), so that
neither the server's user nor the offline Engine's has to know them. Child processes inherit.
"""

import os

DEFAULTS = {
    # Upstream's opt-in: without it a machine without a GPU has "no device".
    "SGLANG_USE_CPU_ENGINE": "1",
    # torch.compile needs a C++ compiler and its headers, which the user may not have.
    "TORCH_COMPILE_DISABLE": "1",
    # A torch built for CUDA brings NCCL, which upstream then starts on ranks that have no GPU.
    "SGLANG_NCCL_SO_PATH": "no-nccl-on-a-cpu",
    # Upstream's faster way of drawing the tokens of a draft is a Triton kernel.
    "SGLANG_OPT_USE_GUMBEL_SAMPLE": "0",
}


def set_defaults() -> None:
    """Set every variable of `DEFAULTS` that the user has not set. Call before importing torch."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
