"""How clients of other projects report a loop, compared with the table of clients.md."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from _environment import CLIENTS
from server import clients_table as tables
from server.configurations import on
from server.launch import Server

PROGRAM = Path(__file__).with_name("clients.py")
SECONDS = 600
SETTINGS = {"overlap": "repetition", "adapters": "length", "dp2": "stop"}
"""The `--lz-loop-finish-reason` of each server."""
WRITE = "LZ_WRITE_CLIENTS"
"""Set it to renew the result from which `scripts/format` makes the table."""


def lines_of(found: dict[str, Any]) -> str:
    """As JSON, a line for each row."""
    between = ",\n"
    settings = [
        f"{json.dumps(setting)}: [\n{between.join(map(json.dumps, rows))}\n]"
        for setting, rows in found.items()
    ]
    return f"{{\n{between.join(settings)}\n}}\n"


@on(*SETTINGS)
def test_clients_handle_a_loop_as_the_table_says(server: Server) -> None:
    setting = SETTINGS[server.config.name]
    done = subprocess.run(
        [CLIENTS / "bin" / "python", PROGRAM, server.url],
        # The test's own packages are those of another environment.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    recorded = json.loads(tables.CLIENTS.read_text()) if tables.CLIENTS.exists() else {}
    if WRITE in os.environ:
        tables.CLIENTS.write_text(lines_of({**recorded, setting: found}))
        return
    assert found == recorded[setting], (
        f"`{WRITE}=1 scripts/test tests/server/test_clients.py` and scripts/format renew it:\n"
        + tables.clients({**recorded, setting: found})
    )
