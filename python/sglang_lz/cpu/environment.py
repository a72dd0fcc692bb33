"""Environment variables that make an SGLang process run on the CPU.

The first lines of `sglang/__init__.py` in the CPU wheel call this (patches/cpu/), so that users of
the server and of the offline Engine need not know these variables. Child processes inherit them.
"""

import os

DEFAULTS = {
    # Upstream's opt-in. Without it, a machine without a GPU has "no device".
    "SGLANG_USE_CPU_ENGINE": "1",
    # torch.compile needs a C++ compiler and its headers, which the user may not have.
    "TORCH_COMPILE_DISABLE": "1",
    # Threads that spin while they wait for each other are slow where other processes also run.
    "OMP_WAIT_POLICY": "PASSIVE",
    # A torch built for CUDA includes NCCL, and upstream would start it on ranks without a GPU.
    "SGLANG_NCCL_SO_PATH": "no-nccl-on-a-cpu",
    # Upstream's faster sampling of draft tokens is a Triton kernel.
    "SGLANG_OPT_USE_GUMBEL_SAMPLE": "0",
}


def set_defaults() -> None:
    """Set every variable of `DEFAULTS` that the user has not set (upstream's hook).

    Call it before importing torch.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
