"""Launch Triton's kernels on a CPU by their PTX.

Triton's own driver, compiler and launcher run over a stand-in for libcuda.so.1 (stub.c). A launch
comes back here, where the kernel's PTX, translated to C (translate.py), runs under random schedules
(core.h): several times from the same memory, which all must leave the same bits.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from translate import Program, translate

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("PTX_CACHE", Path(tempfile.gettempdir()) / f"ptx-{os.getuid()}"))
SCHEDULES = int(os.environ.get("PTX_SCHEDULES", "4"))
SEED = int(os.environ.get("PTX_SEED", "0"))
CAPABILITY = 90
"""Of Hopper."""

FINDINGS = (
    *("race between warps", "race inside a warp", "race between programs", "out of bounds"),
    *("uninitialised", "hang", "divergent barrier", "misaligned", "same value"),
)
"""In the order of core.h."""
SCRATCH = ("walk_ptr", "paths_ptr")
"""Arguments whose memory holds nothing before a launch, but `paths_ptr` of an accept step."""
READ_ONLY = (
    *("request_rows_ptr", "seq_lens_ptr", "input_ids_ptr", "root_ptr", "drafts_ptr"),
    *("first_child_ptr", "next_sibling_ptr", "accept_index_ptr", "num_correct_drafts_ptr"),
    *("strengths_ptr", "mask_ptr", "tails_ptr", "rows_ptr"),
    *("new_tokens_ptr", "new_run_ptr", "new_params_ptr", "new_cover_ptr"),
)
READ_ONLY_OF_VERIFY = ("tokens_ptr", "run_ptr", "params_ptr", "cover_ptr", "numbers_ptr")


class Buffer(ctypes.Structure):
    """See core.h, as for the next two."""

    _fields_ = (
        *(("lo", ctypes.c_uint64), ("hi", ctypes.c_uint64)),
        *(("uninit", ctypes.c_int), ("readonly", ctypes.c_int)),
    )


class Finding(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("kind", "line", "other", "tid", "other_tid")),
        *((name, ctypes.c_int) for name in ("cta", "other_cta")),
        *(("addr", ctypes.c_uint64), ("count", ctypes.c_int)),
    )


class Launch(ctypes.Structure):
    _fields_ = (
        *(("grid", ctypes.c_uint32 * 3), ("params", ctypes.c_uint64 * 64)),
        *(("nbuf", ctypes.c_int), ("buf", Buffer * 64)),
        *(("seed", ctypes.c_uint64), ("mode", ctypes.c_int)),
        *(("shared_bytes", ctypes.c_int), ("max_steps", ctypes.c_uint64)),
        *((name, ctypes.c_uint64) for name in ("steps", "accesses", "barriers", "atomics")),
        *(("nfound", ctypes.c_int), ("found", Finding * 64), ("intra_warp_is_race", ctypes.c_int)),
    )


MODES = 4
MOST_STEPS = 2_000_000_000


@dataclass
class Seen:
    """What all launches together did and what was found.

    Attributes:
        launches: by kernel and threads of a program.
        largest: the most programs of a launch.
        found: how many runs had each finding, with words on the first of them.
    """

    launches: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    largest: int = 0
    work: Counter[str] = field(default_factory=Counter)
    found: dict[tuple[object, ...], list[Any]] = field(default_factory=dict)

    def add(self, key: tuple[object, ...], words: str) -> None:
        self.found.setdefault(key, [words, 0])[1] += 1

    def __str__(self) -> str:
        steps, accesses = (self.work[name] / 1e6 for name in ("steps", "accesses"))
        lines = [
            f"{sum(self.launches.values())} launches of up to {self.largest} programs, "
            f"{self.runs} runs, {steps:.1f} M steps of threads, {accesses:.1f} M accesses, "
            f"{self.work['barriers']} barriers, {self.work['atomics']} atomics",
            *(f"  {name}: {count} launches" for name, count in sorted(self.launches.items())),
            f"{len(self.found)} kinds of findings",
            *(f"  {count} runs: {words}" for words, count in self.found.values()),
        ]
        return "\n".join(lines)


SEEN = Seen()


class Memory:
    """The memory of a launch's tensors.

    Attributes:
        ranges: name, first byte and end of each; a tensor that stands in for several is in once.
    """

    def __init__(self, kernel: str, tensors: Sequence[tuple[str, Any]], rng: random.Random) -> None:
        self.ranges: list[tuple[str, int, int]] = []
        for name, tensor in tensors:
            low, high = _extent(tensor)
            if high > low and all(low != start for _, start, _ in self.ranges):
                self.ranges.append((name, low, high))
        is_verify, is_accept = "verify" in kernel, "accept" in kernel
        self.read_only = {*READ_ONLY, *(READ_ONLY_OF_VERIFY if is_verify else ())}
        self.scratch = {name for name in SCRATCH if not (is_accept and name == "paths_ptr")}
        for name, low, high in self.ranges:
            if name in self.scratch:
                ctypes.memmove(low, rng.randbytes(high - low), high - low)

    def buffers(self) -> list[Buffer]:
        return [
            Buffer(low, high, int(name in self.scratch), int(name in self.read_only))
            for name, low, high in self.ranges
        ]

    def read(self) -> list[bytes]:
        return [ctypes.string_at(low, high - low) for _, low, high in self.ranges]

    def write(self, contents: Sequence[bytes]) -> None:
        for (_, low, high), data in zip(self.ranges, contents, strict=True):
            ctypes.memmove(low, data, high - low)

    def names(self, address: int) -> str:
        """The arguments at an address, or near it."""
        near = [
            f"{name}+{address - low}"
            for name, low, high in self.ranges
            if low - 4096 <= address < high + 4096
        ]
        return " or ".join(near) or hex(address)


def _extent(tensor: Any) -> tuple[int, int]:
    if tensor.numel() == 0:
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _library(name: str, source: Path | str, *options: str) -> Path:
    """A shared library of C, compiled unless the cache has it."""
    text = source.read_text() if isinstance(source, Path) else source
    key = hashlib.sha256((text + (HERE / "core.h").read_text()).encode()).hexdigest()[:16]
    path = CACHE / key / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        code = path.with_suffix(".c")
        code.write_text(text)
        new = path.with_suffix(f".{os.getpid()}")
        command = ["cc", "-w", "-O1", "-fPIC", "-shared", "-I", str(HERE), *options]
        subprocess.run([*command, "-o", str(new), str(code), "-lm"], check=True)
        new.rename(path)
    return path


def be_the_driver() -> ctypes.CDLL:
    """Make the stand-in for CUDA Triton's active driver, for tensors of the CPU; returns it."""
    path = _library("libcuda.so.1", HERE / "stub.c", "-Wl,-soname,libcuda.so.1")
    stub = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    os.environ["TRITON_LIBCUDA_PATH"] = str(path.parent)
    os.environ.setdefault("TRITON_CACHE_DIR", str(CACHE / "triton"))

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver

    class Driver(CudaDriver):
        def __init__(self) -> None:
            super().__init__()
            self.get_current_device = lambda: 0
            self.get_current_stream = lambda device: 0
            self.get_device_capability = lambda device=0: divmod(CAPABILITY, 10)
            self.set_current_device = lambda device: None

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", CAPABILITY, 32)

    triton.knobs.runtime.interpret = False
    triton.runtime.driver.set_active(Driver())
    return stub


class Emulator:
    """Runs every launch of our kernels."""

    def __init__(self) -> None:
        self._binaries: dict[int, Any] = {}
        self._programs: dict[str, tuple[Program, Any]] = {}
        self._errors: list[BaseException] = []
        self._current: tuple[str, list[tuple[str, Any]]] = "", []
        callback = ctypes.CFUNCTYPE(
            *(ctypes.c_int, ctypes.c_void_p),
            *(ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_void_p)),
        )
        self._callback = callback(self._launched)
        be_the_driver().emu_set_callback(self._callback)
        self._note_binaries()
        self._note_launches()

    def _note_binaries(self) -> None:
        from triton.compiler.compiler import CompiledKernel

        init_handles = CompiledKernel._init_handles

        def noting(binary: Any) -> None:
            init_handles(binary)
            self._binaries[binary.function] = binary

        CompiledKernel._init_handles = noting

    def _note_launches(self) -> None:
        import torch

        from sglang_lz.penalty.kernels.launch import Kernel

        launch = Kernel.__call__

        def noting(kernel: Any, grid: Any, *arguments: Any, **more: Any) -> None:
            names = [param.name for param in kernel.jit.params]
            tensors = [
                (name, value)
                for name, value in zip(names, arguments, strict=False)
                if isinstance(value, torch.Tensor)
            ]
            self._current = kernel.jit.fn.__name__, tensors
            launch(kernel, grid, *arguments, **more)
            if self._errors:
                raise self._errors.pop()

        Kernel.__call__ = noting  # type: ignore[method-assign]

    def _launched(self, function: int, sizes: Any, params: Any) -> int:
        try:
            self._run(self._binaries[function].asm["ptx"], sizes[:7], params)
        except BaseException as error:  # ctypes would swallow it
            self._errors.append(error)
        return 0

    def _program(self, ptx: str) -> tuple[Program, Any]:
        if ptx not in self._programs:
            program = translate(ptx)
            options = ("-ffp-contract=off", "-fno-strict-aliasing", "-mfma")
            library = ctypes.CDLL(str(_library(f"{program.name}.so", program.c, *options)))
            library.launch.argtypes = [ctypes.POINTER(Launch)]
            self._programs[ptx] = program, library
        return self._programs[ptx]

    def _run(self, ptx: str, sizes: Sequence[int], params: Any) -> None:
        """Run a launch under `SCHEDULES` schedules, each from the same memory."""
        kernel, tensors = self._current
        program, library = self._program(ptx)
        assert sizes[3] * sizes[4] * sizes[5] == program.threads
        rng = random.Random(f"{SEED} {SEEN.launches.total()}")
        memory = Memory(kernel, tensors, rng)
        launch = Launch(shared_bytes=sizes[6], max_steps=MOST_STEPS, nbuf=len(memory.ranges))
        launch.grid[:] = sizes[:3]
        launch.buf[: launch.nbuf] = memory.buffers()
        for i, size in enumerate(program.params):
            launch.params[i] = int.from_bytes(ctypes.string_at(params[i], size), "little")
        SEEN.launches[f"{kernel}, {program.threads} threads"] += 1
        SEEN.largest = max(SEEN.largest, sizes[0] * sizes[1])
        before, after = memory.read(), None
        for _ in range(SCHEDULES):
            memory.write(before)
            launch.seed, launch.mode = rng.getrandbits(62), rng.randrange(MODES)
            library.launch(ctypes.byref(launch))
            SEEN.runs += 1
            for name in ("steps", "accesses", "barriers", "atomics"):
                SEEN.work[name] += getattr(launch, name)
            schedule = f"seed {launch.seed} mode {launch.mode}"
            for found in launch.found[: launch.nfound]:
                _note(kernel, program, found, memory, schedule)
            got = memory.read()
            after = after or got
            for (name, *_), one, other in zip(memory.ranges, got, after, strict=True):
                if one != other:
                    SEEN.add((kernel, name), f"{kernel}: other bits in {name}, {schedule}")


def _note(kernel: str, program: Program, found: Any, memory: Memory, schedule: str) -> None:
    places = (f"{line} [{program.where.get(line, '?')}]" for line in (found.line, found.other))
    words = (
        f"{kernel}, {program.threads} threads: {FINDINGS[found.kind]}, PTX {' and '.join(places)}; "
        f"threads {found.tid}, {found.other_tid}; programs {found.cta}, {found.other_cta}; at "
        f"{memory.names(found.addr)}; {schedule}"
    )
    SEEN.add((kernel, found.kind, found.line, found.other), words)
