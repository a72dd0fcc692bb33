"""Compile the kernels for Hopper as a server would use them, and say of each program:

kernel, whether with histories, block, registers, bytes of stack, order of its memory operations.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_lz.fields.lz import LARGEST_MAX_WINDOW_SIZE
from sglang_lz.penalty.kernels import cuda as cuda_kernels

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    **dict.fromkeys(
        ("tokens_ptr", "paths_ptr", "accept_index_ptr", "num_correct_drafts_ptr"), "*i32"
    ),
    **dict.fromkeys(
        ("request_rows_ptr", "seq_lens_ptr", "input_ids_ptr", "root_ptr", "drafts_ptr"), "*i64"
    ),
    **dict.fromkeys(("first_child_ptr", "next_sibling_ptr"), "*i64"),
    **dict.fromkeys(("memory_ptr", "numbers_ptr", "tails_ptr", "walk_ptr"), "*i32"),
    "forbidden_ptr": "*i32",
    **dict.fromkeys(("mask_ptr", "cover_ptr"), "*i64"),
    "run_ptr": "*i16",
    **dict.fromkeys(("params_ptr", "logits_ptr", "strengths_ptr"), "*fp32"),
}
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


# How the intermediate code of Triton 3.6 and of 3.9 names what the order of memory depends on.
MEMORY = re.compile(r"\btt\.(load|store|atomic)|\b(?:gpu|ttg)\.(barrier)\b")
LETTERS = {"load": "L", "store": "S", "atomic": "A", "barrier": "B"}


def compiled_for_hopper(kernel, block: int, history: bool, nodes: int, launch: dict[str, int]):
    constants = {"BLOCK": block, "NODES": nodes, "HISTORY": history}
    types = POINTERS | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(
        kernel, signature, {name: constants[name] for name in signature if name in constants}
    )
    return triton.compile(source, HOPPER, launch)


def resources(compiled) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(compiled.asm["cubin"])
        binary.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", binary.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def order(compiled) -> str:
    """Loads, stores, atomics and barriers as they stand in the program, a letter each."""
    return "".join(
        LETTERS[found[1] or found[2]] for found in MEMORY.finditer(compiled.asm["ttgir"])
    )


def say(name: str, block: int, history: bool, nodes: int, launch: dict[str, int]) -> None:
    program = compiled_for_hopper(getattr(cuda_kernels, name), block, history, nodes, launch)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", resources(program)).groups()
    print(f"{name} {int(history)} {block} {registers} {stack} {order(program)}")


blocks = [1 << n for n in range(7, 14)]
assert (blocks[0], blocks[-1]) == (cuda_kernels.SMALLEST_BLOCK, LARGEST_MAX_WINDOW_SIZE)
for name, block, history in itertools.product(("_step", "_verify", "_accept"), blocks, (0, 1)):
    launch = cuda_kernels._launch(block)
    say(name, block, bool(history), cuda_kernels.SMALLEST_TREE, launch)
say("_verify", 1024, True, 512, cuda_kernels._launch(1024))
say("_forbid", 0, False, 0, {"num_warps": cuda_kernels.FORBID_WARPS})
