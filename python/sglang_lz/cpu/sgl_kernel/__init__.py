"""Replacements in torch for the names that SGLang imports from `sgl_kernel` on a CPU.

The published `sglang-kernel` wheels are CUDA builds that cannot be loaded without a GPU driver, but
SGLang imports these names even on a CPU. The CPU wheel of sglang-lz therefore includes this package
at its top level instead.

Importing it registers the operators that SGLang calls as `torch.ops.sgl_kernel.*`. We deliberately
leave out `convert_weight_packed`: without it, SGLang assumes that there are no AMX kernels and uses
plain torch for every layer.
"""
# ruff: noqa: F401 (SGLang imports them from here)

from .attention import build_draft_decode_metadata_cpu, decode_attention_cpu, extend_attention_cpu
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from .sampling import (
    chain_speculative_sampling_triton,
    murmur_hash32_cpu,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
)
from .speculative import (
    build_tree_kernel_efficient_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__version__ = "0.0.0+sglang.lz.cpu"
