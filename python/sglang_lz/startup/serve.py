"""``sglang-lz serve``: starts the server of the sglang that this package belongs to.

It decides on the arguments and becomes `sglang_lz.startup.launch`, which is a program of its own
because nothing in this folder may import sglang.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from lz_penalty.fields import lz, repetition
from sglang_lz.models import catalogue
from sglang_lz.models.packages import UnreachableError
from sglang_lz.startup import DEFAULT_PORT
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.processes import ending_with_us
from sglang_lz.startup.seal import SEAL, Seal, reader

PACKAGE = Path(__file__).resolve().parent.parent
DEMO_MODEL = PACKAGE / "demo" / "model"
HOST, PORT = "SGLANG_LZ_HOST", "SGLANG_LZ_PORT"

DEMO = "--demo"
DEMO_ARGUMENTS = ["--model-path", str(DEMO_MODEL), "--served-model-name", "demo"]
CPU = [
    # Gives the same text on every CPU; in bfloat16, greedy decoding differs between CPUs.
    *["--dtype", "float32"],
    # By default, upstream reserves 72 % of the memory for the cache, and touches it at start-up.
    *["--max-total-tokens", "32768", "--max-running-requests", "64"],
    "--sleep-on-idle",  # otherwise, an idle server keeps a core busy
]
PLAYGROUND = "--playground"
END_LOOPS = "--end-loops"
PREFERRED = "--preferred-sampling-params"
RECOMMENDED = {**lz.RECOMMENDED, repetition.FIELD: dict(repetition.RECOMMENDED_FIELD)}
"""The sampling parameters that `END_LOOPS` gives to every request that has none of its own."""


def parsed(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """What this command reads of its arguments, and the server's other ones."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in (DEMO, END_LOOPS, PLAYGROUND):
        parser.add_argument(flag, action="store_true")
    for name in ("--config", "--host", "--port", PREFERRED):
        parser.add_argument(name)
    parser.add_argument("--model-path", "--model")
    try:
        return parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise DistError(f"{error}.") from None


def server_arguments(flavour: str, arguments: list[str]) -> list[str]:
    """The arguments of sglang.launch_server: ours, then the user's, which override ours.

    With --config we add nothing, because arguments take precedence over that file, and ours would
    override the user's settings in it.

    Raises DistError if they contradict each other, PackageError if a model that was asked for
    cannot be fetched.
    """
    own, rest = parsed(arguments)
    others = {"--model-path": own.model_path, "--config": own.config}
    given = [name for name, value in others.items() if value is not None]
    if own.demo and given:
        raise DistError(f"{DEMO} must be left out with {' and '.join(given)}.")
    if "--config" in given and own.end_loops:
        raise DistError(
            f"{END_LOOPS} must be left out with --config, whose file it would override; set "
            f"preferred-sampling-params to {json.dumps(RECOMMENDED)} there."
        )
    if "--config" in given and own.playground:
        raise DistError(f"{PLAYGROUND} must be left out with --config; run it beside the server.")
    if "--config" in given:
        return arguments
    preferred = own.preferred_sampling_params
    if own.end_loops:
        try:
            preferred = json.dumps(
                {**RECOMMENDED, **json.loads("{}" if preferred is None else preferred)}
            )
        except (RecursionError, TypeError, ValueError):
            raise DistError(f"{PREFERRED} must be a JSON object, got {preferred[:80]!r}.") from None
    return [
        *["--host", os.environ.get(HOST, "127.0.0.1") if own.host is None else own.host],
        *["--port", os.environ.get(PORT, DEFAULT_PORT) if own.port is None else own.port],
        *(CPU if flavour == "cpu" else []),
        *(DEMO_ARGUMENTS if own.demo else model_arguments(own.model_path)),
        *([] if preferred is None else [PREFERRED, preferred]),
        *rest,
    ]


def model_arguments(asked: str | None) -> list[str]:
    """Name a model's folder in place of a name of the catalogue, or of nothing."""
    name = catalogue.DEFAULT if asked is None else asked
    model = catalogue.published().get(name)
    if model is None or (asked is not None and Path(asked).is_dir()):
        return ["--model-path", name]
    try:
        return ["--model-path", str(catalogue.obtain(model)), "--served-model-name", name]
    except UnreachableError as error:
        if asked:
            raise
        print(
            f"sglang-lz: {error} Serving the model of the tests instead, which writes nonsense.",
            file=sys.stderr,
        )
        return DEMO_ARGUMENTS


def playground_command(host: str, port: str) -> list[str]:
    """The command of the playground beside a server on these."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    server = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return [sys.executable, "-m", "sglang_lz", "playground", "--server", server]


def serve(arguments: list[str]) -> NoReturn:
    """Replace this process with the server; DistError if ours is not part of a patched sglang."""
    read = reader(PACKAGE.parent)
    if read(SEAL) is None:
        raise DistError(
            f"{PACKAGE} is not part of a patched sglang, so there is nothing to serve; in a "
            "checkout use scripts/serve, which builds one."
        )
    own = server_arguments(Seal.read(read).flavour, arguments)
    final, _ = parsed(own)
    folder = Path(final.model_path or "")
    if folder == DEMO_MODEL or folder.parent == catalogue.models_folder():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing needs to be downloaded
    if folder == DEMO_MODEL:
        # The model is so small that more threads would only wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "sglang_lz.startup.launch", *own]
    if PLAYGROUND in arguments:
        playground = playground_command(final.host, final.port)
        subprocess.Popen(playground, preexec_fn=ending_with_us())  # noqa: PLW1509, one thread
    print(f"sglang-lz: python {shlex.join(command[1:])}", file=sys.stderr, flush=True)
    os.execv(sys.executable, command)
