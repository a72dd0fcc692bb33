"""Random requests: no route answers one with an error of the server.

Schemathesis makes them from the server's own OpenAPI document, right ones and wrong ones, the same
in every run. By hand, with other seeds and more of them, beside a server that runs:

    LZ_FUZZ_SEED=7 LZ_FUZZ_EXAMPLES=100 scripts/test tests/server/test_fuzz.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.http_client import HTTP, TIMEOUT_SECONDS
from server.client import generate
from server.configurations import on
from server.launch import Server

SEED = os.environ.get("LZ_FUZZ_SEED", "29")
EXAMPLES = os.environ.get("LZ_FUZZ_EXAMPLES", "1")
"""The most requests for each operation."""

# What is left out. Most of it administers the server (--admin-api-key), and can end it.
LEFT_OUT = (
    # It ends the requests of others.
    "/abort_request",
    # It empties or moves what all requests share.
    *("/add_external_corpus", "/remove_external_corpus", "/flush_cache"),
    *("/hicache/storage-backend", "/hicache/storage-backend/clear"),
    # It replaces the model for everybody.
    *("/begin_weight_update", "/destroy_weights_update_group", "/end_weight_update"),
    *("/get_weights_by_name", "/init_weights_send_group_for_remote_instance"),
    *("/init_weights_update_group", "/load_lora_adapter", "/load_lora_adapter_from_tensors"),
    *("/send_weights_to_remote_instance", "/unload_lora_adapter", "/update_weight_version"),
    *("/update_weights_from_disk", "/update_weights_from_distributed"),
    *("/update_weights_from_ipc", "/update_weights_from_tensor", "/weights_checker"),
    # It writes files, and slows the server down.
    *("/configure_logging", "/dump_expert_distribution_record", "/set_trace_level"),
    *("/start_expert_distribution_record", "/start_profile"),
    *("/stop_expert_distribution_record", "/stop_profile"),
    # It stops the server for everybody until it is told to go on.
    *("/continue_generation", "/freeze_gc", "/pause_generation", "/pd_role_switch"),
    *("/release_memory_occupation", "/resume_memory_occupation", "/scale_elastic_ep"),
    *("/set_internal_state", "/slow_down"),
    # It has the model and the handler of /v1/chat/completions, which is tried.
    "/invocations",
)


@pytest.mark.full
@on("overlap")
def test_no_request_gets_a_server_error(server: Server, tmp_path: Path) -> None:
    document = HTTP.get(f"{server.url}/openapi.json").json()
    tool = Path(sys.executable).with_name("schemathesis")
    run = subprocess.run(
        [
            *(tool, "run", f"{server.url}/openapi.json", "--checks", "not_a_server_error"),
            *("--seed", SEED, "--max-examples", EXAMPLES, "--phases", "fuzzing"),
            *("--generation-database", "none", "--no-shrink", "--continue-on-failure"),
            *("--request-timeout", str(TIMEOUT_SECONDS), "--suppress-health-check", "all"),
            *("--warnings", "off", "--no-color"),
            *(part for path in LEFT_OUT for part in ("--exclude-path", path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * TIMEOUT_SECONDS,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert generate(server, [5], 2).outputs
    samples = ("/generate", "/api/", "/v1/", "/vertex_generate", "/encode", "/classify")
    assert not [path for path in LEFT_OUT if path.startswith(samples)]
    assert set(LEFT_OUT) <= document["paths"].keys()
