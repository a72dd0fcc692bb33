"""Shared by all tests: settings of hypothesis, and server arguments without a server."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import numba_cache
from device import DEVICE

# Here, since with pytest-xdist the process that prints for them loads no other conftest.
pytest_plugins = ["server.summary"]

# Shared machines stall: time limits on single examples would fail for no fault of the code.
settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-machine")
settings.register_profile("fewer-examples", settings.get_profile("shared-machine"), max_examples=40)

numba_cache.use_own_folder()  # before anything imports numba

if DEVICE == "cpu":
    # Triton's own functions are interpreted only if they were imported so, and any test module may
    # import them (through xgrammar, for one): this file comes before all of them.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("triton.language")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of all tests; here, since pytest reads no deeper conftest before the arguments."""
    parser.addoption(
        "--representative",
        action="store_true",
        help="run a test on the first server that it names (see the marks each_kind, every_server),"
        " and with 40 examples of hypothesis instead of 100",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of examples before test modules use it."""
    if config.getoption("representative"):
        settings.load_profile("fewer-examples")


@pytest.fixture
def server_config(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Server arguments in effect, without a server, to be changed by a test."""
    from sglang.srt import runtime_context

    config: dict[str, Any] = {
        "speculative_algorithm": None,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "decoupled_spec_role": "null",
        "enable_streaming_session": False,
        "disaggregation_mode": "null",
        "dllm_algorithm": None,
        "enable_pdmux": False,
        "enable_multi_layer_eagle": False,
        "pp_size": 1,
        "attn_dp_size": 1,
        "attn_cp_size": 1,
        "dcp_size": 1,
        "device": "cuda",
        "lz_max_window_size": 1024,
        "lz_history_memory": 256,
        "lz_observe_loops": 0.0,
        "lz_loop_finish_reason": "repetition",
        "enable_metrics": False,
        "reasoning_parser": None,
        "grammar_backend": "xgrammar",
        "constrained_json_max_whitespace_cnt": None,
        "skip_tokenizer_init": False,
        "allow_auto_truncate": False,
        "preferred_sampling_params": None,
        "tokenizer_metrics_allowed_custom_labels": None,
        "trust_request_chat_template": False,
        "enable_deterministic_inference": False,
    }
    context = SimpleNamespace(config_leaf=config.__getitem__)
    monkeypatch.setattr(runtime_context, "get_context", lambda: context)
    return config
