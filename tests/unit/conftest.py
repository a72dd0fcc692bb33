"""Shared by several of these tests."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from device import DEVICE

CHECKOUT = Path(__file__).resolve().parents[2] / "python" / "sglang_lz" / "cpu"


@pytest.fixture
def cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernels of CUDA on DEVICE; nothing imports them before, as the product does on CUDA."""
    monkeypatch.setenv("TRITON_INTERPRET", str(int(DEVICE == "cpu")))
    return importlib.import_module("sglang_lz.penalty.kernels.cuda")


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The checkout's `sgl_kernel`, whether or not a wheel with one is installed."""
    saved = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    sys.path.insert(0, str(CHECKOUT))
    try:
        yield importlib.import_module("sgl_kernel")
    finally:
        sys.path.remove(str(CHECKOUT))
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(saved)


def _is_ours(name: str) -> bool:
    return name == "sgl_kernel" or name.startswith("sgl_kernel.")
