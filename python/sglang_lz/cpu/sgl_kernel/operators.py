"""Registers functions as operators `torch.ops.sgl_kernel.*`."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., object])
_LIBRARY: Any = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(*written: str) -> Callable[[Function], Function]:
    """Register the decorated function under its own name, unless it is there already.

    Args:
        written: the arguments that it writes into.
    """

    def register(function: Function) -> Function:
        name = function.__name__
        if not hasattr(torch.ops.sgl_kernel, name):
            _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=written))
            _LIBRARY.impl(name, function, "CPU")
        return function

    return register
