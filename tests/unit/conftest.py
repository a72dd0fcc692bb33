"""Shared by several of these tests."""

import importlib
from types import ModuleType

import pytest

from device import DEVICE


@pytest.fixture
def cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernels of CUDA on DEVICE; nothing imports them before, as the product does on CUDA."""
    monkeypatch.setenv("TRITON_INTERPRET", str(int(DEVICE == "cpu")))
    return importlib.import_module("lz_penalty.kernels.cuda")
