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

_WEIGHTS = "replaces the model for everybody"
_PROFILE = "writes files, and slows the server down"
_PAUSE = "stops the server for everybody until it is told to go on"
_CACHE = "empties or moves what all requests share"
_TWICE = "has the model and the handler of /v1/chat/completions, which is tried"
# By path, why it is left out. Most administer the server (--admin-api-key), and can end it.
LEFT_OUT = {
    "/abort_request": "ends the requests of others",
    "/add_external_corpus": _CACHE,
    "/remove_external_corpus": _CACHE,
    "/flush_cache": _CACHE,
    "/hicache/storage-backend": _CACHE,
    "/hicache/storage-backend/clear": _CACHE,
    "/begin_weight_update": _WEIGHTS,
    "/destroy_weights_update_group": _WEIGHTS,
    "/end_weight_update": _WEIGHTS,
    "/get_weights_by_name": _WEIGHTS,
    "/init_weights_send_group_for_remote_instance": _WEIGHTS,
    "/init_weights_update_group": _WEIGHTS,
    "/load_lora_adapter": _WEIGHTS,
    "/load_lora_adapter_from_tensors": _WEIGHTS,
    "/send_weights_to_remote_instance": _WEIGHTS,
    "/unload_lora_adapter": _WEIGHTS,
    "/update_weight_version": _WEIGHTS,
    "/update_weights_from_disk": _WEIGHTS,
    "/update_weights_from_distributed": _WEIGHTS,
    "/update_weights_from_ipc": _WEIGHTS,
    "/update_weights_from_tensor": _WEIGHTS,
    "/weights_checker": _WEIGHTS,
    "/configure_logging": _PROFILE,
    "/dump_expert_distribution_record": _PROFILE,
    "/set_trace_level": _PROFILE,
    "/start_expert_distribution_record": _PROFILE,
    "/start_profile": _PROFILE,
    "/stop_expert_distribution_record": _PROFILE,
    "/stop_profile": _PROFILE,
    "/continue_generation": _PAUSE,
    "/freeze_gc": _PAUSE,
    "/pause_generation": _PAUSE,
    "/pd_role_switch": _PAUSE,
    "/release_memory_occupation": _PAUSE,
    "/resume_memory_occupation": _PAUSE,
    "/scale_elastic_ep": _PAUSE,
    "/set_internal_state": _PAUSE,
    "/slow_down": _PAUSE,
    "/invocations": _TWICE,
}


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
    assert LEFT_OUT.keys() <= document["paths"].keys()
