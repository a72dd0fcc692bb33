"""Shared by the benchmarks: where and how one was run, and the form of its result file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import records

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DEMO = ROOT / "python" / "sglang_lz" / "demo"


def command(module: str) -> str:
    """Return the command line that runs the module of a benchmark as it runs now."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def date() -> str:
    """Return the time of the measurement, to the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def machine() -> dict[str, Any]:
    """The processor, its cores and the Python of this machine."""
    return {"cpu": _cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()}


def provenance(module: str) -> dict[str, Any]:
    """How, when, of which code and where a result is measured.

    Args:
        module: of the benchmark that runs.
    """
    return {"command": command(module), "date": date(), "commit": commit(), **machine()}


def versions(*distributions: str) -> dict[str, str | None]:
    """The version of each installed distribution, None for one that is not."""
    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def environment(server: dict[str, Any]) -> dict[str, Any]:
    """Return where and with what the numbers were measured.

    Args:
        server: what SGLang's /server_info answers; empty for another server.
    """
    folder = Path(server.get("model_path", "unknown"))
    weights, training = folder / "model.safetensors", folder / "training.json"
    digest = None
    if weights.is_file():
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "date": date(),
        **machine(),
        "sglang": server.get("version"),
        **versions("torch"),
        "model": f"{folder.parent.name}/{folder.name}",
        "model_sha256": digest,
        **({"training": json.loads(training.read_text())} if training.is_file() else {}),
        "server": {
            name: server.get(name)
            for name in (
                *("device", "dtype", "tp_size", "attention_backend"),
                *("disable_overlap_schedule", "enable_deterministic_inference"),
            )
        },
    }


def commit() -> str | None:
    """The commit of this checkout, marked if the code to be measured differs from it; or None.

    A machine that only measures may have no git, or a checkout without its history.
    """
    git = ["git", "-C", str(ROOT)]
    head = output(*git, "rev-parse", "HEAD")
    changed = output(*git, "status", "--porcelain", "python", "patches", ":(glob)bench/**/*.py")
    return f"{head}-changed" if head and changed else head


def output(*command: str) -> str | None:
    """The output of a command; None if it cannot run or fails."""
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result file, every innermost list on one line."""
    text = json.dumps(result, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)
    records.write(path, text + "\n")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if "model name" in line), "unknown"
    )
