"""Compile the kernels for Hopper as a server would use them, and say what each program takes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_lz import fused

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    **dict.fromkeys(("tokens", "paths", "accept_index", "num_correct_drafts"), "*i32"),
    **dict.fromkeys(("request_rows", "seq_lens", "input_ids", "root", "drafts"), "*i64"),
    **dict.fromkeys(("first_child", "next_sibling"), "*i64"),
    "match": "*i16",
    "params": "*fp32",
}
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def resources(kernel, logits: str, block: int) -> str:
    constants = {"BLOCK": block, "NODES": 16}
    types = POINTERS | {"logits": f"*{logits}"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(
        kernel, signature, {name: constants[name] for name in signature if name in constants}
    )
    compiled = triton.compile(source, HOPPER, {"num_warps": fused._warps(block)})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(compiled.asm["cubin"])
        binary.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", binary.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


for name in ("_step", "_verify"):
    for logits in ("fp32", "bf16", "fp16"):
        for block in (512, 1024):
            found = resources(getattr(fused, name), logits, block)
            registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", found).groups()
            print(f"{name} {logits} block {block}: registers {registers} stack {stack}")
