"""Compile the kernels for Hopper as a server would use them, and say what each program takes.

Prints one JSON object a line (`Program`). With `--write` it also renews this Triton's part of
kernel_budget.json, with which a test compares:

    PYTHONPATH=python:. python tests/unit/compile_cuda_kernels.py --write
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lz_penalty.fields.lz import LARGEST_MAX_WINDOW_SIZE
from lz_penalty.kernels import cuda as cuda_kernels

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
    **dict.fromkeys(("block_ptr", "is_number_ptr"), "*u8"),
}
OF_HISTORY = (
    "memory_ptr", "numbers_ptr", "strengths_ptr", "mask_ptr", "masks", "tails_ptr", "walk_ptr",
    "forbidden_ptr", "words",
)  # fmt: skip
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
BUDGET = Path(__file__).with_name("kernel_budget.json")
COUNTS = ("registers", "instructions", "barriers", "loads", "rounds", "stack")

# How the intermediate code of Triton 3.6 and of 3.9 names what the order of memory depends on.
MEMORY = re.compile(r"\btt\.(load|store|atomic)|\b(?:gpu|ttg)\.(barrier)\b")
LETTERS = {"load": "L", "store": "S", "atomic": "A", "barrier": "B"}


def compiled_for_hopper(kernel, block: int, history: bool, nodes: int, launch: dict[str, int]):
    constants = {"BLOCK": block, "NODES": nodes, "HISTORY": history}
    if not history and "HISTORY" in kernel.arg_names:
        constants |= dict.fromkeys(OF_HISTORY)
    types = POINTERS | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(
        kernel, signature, {name: constants[name] for name in signature if name in constants}
    )
    return triton.compile(source, HOPPER, launch)


@dataclass(frozen=True)
class Program:
    """A kernel compiled for one shape.

    Attributes:
        name: what the budget calls it.
        kernel: the kernel's name.
        histories: whether it also applies the penalties over a whole history.
        block: window columns.
        registers: of a thread.
        stack: bytes of a thread's registers that are spilled to memory.
        instructions: in the program; without histories, a warp executes each at most once.
        barriers: among them.
        loads: among them, from global memory.
        rounds: in how many rounds it loads from global memory (`rounds_of_loads`).
        order: loads, stores, atomics and barriers as they stand in Triton's intermediate code, a
            letter each.
    """

    name: str
    kernel: str
    histories: bool
    block: int
    registers: int
    stack: int
    instructions: int
    barriers: int
    loads: int
    rounds: int
    order: str


def dump(compiled: Any) -> str:
    """The resources of a thread of the program, and its instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(compiled.asm["cubin"])
        binary.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", "--dump-sass", binary.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def order(compiled: Any) -> str:
    return "".join(
        LETTERS[found[1] or found[2]] for found in MEMORY.finditer(compiled.asm["ttgir"])
    )


INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", re.MULTILINE)
REGISTER = re.compile(r"\bR(\d+)(\.64)?")
WIDE = {".64": 2, ".128": 4}
"""How many registers in a row an operand has, by its suffix or that of its load."""


def rounds_of_loads(instructions: Sequence[str]) -> int:
    """In how many rounds a warp loads from global memory.

    A warp issues its instructions in order, and waits at the first that needs the result of a load.
    Loads behind it are of a later round, whether they need that result or not. Here the order is
    that of the text: both sides of a branch count, and loops count once.
    """
    pending: dict[int, int] = {}  # by register, the round of the load that fills it
    finished = rounds = 0
    for text in instructions:
        operation, operands = re.fullmatch(r"(?:@!?\S+)?\s*(\S+)\s*(.*)", text).groups()
        for number, suffix in REGISTER.findall(operands):
            for register in range(int(number), int(number) + WIDE.get(suffix, 1)):
                finished = max(finished, pending.pop(register, 0))
        if operation.startswith(("LDG", "ATOMG")):
            first = int(REGISTER.search(operands)[1])
            width = max((n for suffix, n in WIDE.items() if suffix in operation), default=1)
            pending |= dict.fromkeys(range(first, first + width), finished + 1)
            rounds = finished + 1
    return rounds


def program(
    kernel: str, block: int, histories: bool = False, nodes: int = cuda_kernels.SMALLEST_TREE
) -> Program:
    launched = getattr(cuda_kernels, kernel)
    constants = {
        "_step": (block, histories),
        "_verify": (nodes, block, histories),
        "_accept": (block, histories),
        "_seed": (block,),
        "_forbid": (),
    }
    compiled = compiled_for_hopper(
        launched.jit, block, histories, nodes, launched.options(*constants[kernel])
    )
    text = dump(compiled)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", text).groups()
    instructions = [one for one in INSTRUCTION.findall(text) if not one.startswith("NOP")]
    operations = Counter(
        re.sub(r"^@!?\S+\s+", "", one).split()[0].split(".")[0] for one in instructions
    )
    name = f"{kernel} {block}"
    name += " with histories" if histories else ""
    name += f", {nodes} nodes" if nodes > cuda_kernels.SMALLEST_TREE else ""
    return Program(
        name,
        kernel,
        histories,
        block,
        int(registers),
        int(stack),
        len(instructions),
        operations["BAR"],
        operations["LDG"],
        rounds_of_loads(instructions),
        order(compiled),
    )


BLOCKS = [1 << n for n in range(7, 14)]
assert (BLOCKS[0], BLOCKS[-1]) == (cuda_kernels.SMALLEST_BLOCK, LARGEST_MAX_WINDOW_SIZE)


def programs(blocks: Sequence[int]) -> list[Program]:
    found = [
        program(kernel, block, histories)
        for kernel, block, histories in itertools.product(
            ("_step", "_verify", "_accept"), blocks, (False, True)
        )
    ]
    found.append(program("_verify", 1024, True, 512))
    found.append(program("_seed", cuda_kernels.SEED_BLOCK))
    found.append(program("_forbid", 0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew kernel_budget.json")
    parser.add_argument(
        "--blocks", type=int, nargs="+", metavar="COLUMNS", help="only for these; not with --write"
    )
    options = parser.parse_args()
    if options.write and options.blocks:
        parser.error("--write renews the budget of all blocks")
    found = programs(options.blocks or BLOCKS)
    for one in found:
        print(json.dumps(asdict(one)))
    if options.write:
        from bench.common import write_result

        version = ".".join(triton.__version__.split(".")[:2])
        rows = {one.name: [getattr(one, count) for count in COUNTS] for one in found}
        known = json.loads(BUDGET.read_text())
        write_result(BUDGET, known | {"counts": COUNTS, version: rows})


if __name__ == "__main__":
    main()
