"""Launching Triton kernels from a scheduler's thread."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver


class Kernel:
    """A kernel with few binaries, which is launched without Triton's search for the right one.

    One binary serves every batch, vocabulary and slice of a buffer. Unless told otherwise, Triton
    compiles again for arguments that are 1 or divisible by 16, which would block the server while
    it serves. (No argument may be called `params`, `options` or `specialization`: the launcher that
    Triton generates has variables of these names.)

    At each launch Triton examines every argument to find the binary, which takes the host several
    times as long as the launch itself. Here the caller says what a binary depends on. Triton also
    calls its hooks before and after each launch; here only if a profiler has set some.

    Attributes:
        jit: Triton's kernel.
        options: Triton's launch options for its constants.
    """

    def __init__(self, function: Any, options: Callable[..., dict[str, int]]) -> None:
        """Compile nothing yet.

        Args:
            function: the kernel. Its constants come last, in capitals.
            options: as the attribute.
        """
        names = [name for name in inspect.signature(function).parameters if not name.isupper()]
        self.jit = triton.jit(
            function, do_not_specialize=names, do_not_specialize_on_alignment=names
        )
        self.options = options
        self._binaries: dict[tuple[object, ...], Any] = {}

    def __call__(
        self,
        grid: tuple[int, int],
        *arguments: object,
        constants: tuple[int, ...] = (),
        types: tuple[torch.dtype, ...] = (),
    ) -> None:
        """Launch the kernel on the current stream of the current device.

        Args:
            grid: how many programs there are in both directions.
            arguments: its arguments that are no constants, in order; first a tensor on that device.
            constants: its constants, in order.
            types: the types of those tensors whose type may differ between calls.
        """
        key = constants, types, cast("Tensor", arguments[0]).device
        binary = self._binaries.get(key)
        if binary is None:
            made = self.jit[grid](*arguments, *constants, **self.options(*constants))
            if made is not None:  # the interpreter makes no binary
                self._binaries[key] = made
        elif knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:
            binary[(*grid, 1)](*arguments, *constants)
        else:
            active = driver.active
            stream = active.get_current_stream(active.get_current_device())
            # As Triton itself launches it, but without metadata for hooks, and without hooks. Given
            # a tensor, its launcher asks CUDA's driver about the address, which takes time; so a
            # tensor on the CPU is an error of the first launch only.
            addresses = [a.data_ptr() if type(a) is Tensor else a for a in arguments]
            binary.run(
                *grid, 1, stream, binary.function, binary.packed_metadata, None, None, None,
                *addresses, *constants,
            )  # fmt: skip
