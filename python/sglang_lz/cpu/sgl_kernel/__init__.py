"""Torch stand-in for the names SGLang imports from `sgl_kernel` on a CPU.

The published `sglang-kernel` wheels are CUDA builds that cannot be loaded without
a GPU driver, yet SGLang imports these names when it is *loaded* for the CPU. The
CPU wheel of sglang-lz carries this package at its top level in their place.

No `torch.ops.sgl_kernel.*` operator is registered here. SGLang takes that as "no
AMX kernels" and uses plain torch for every layer, which is what we want.
"""

from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from .speculative import (
    build_tree_kernel_efficient_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__version__ = "0.0.0+sglang.lz.cpu"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
