"""``sglang-lz serve``: starts the server of the sglang that this package belongs to.

It decides on the arguments and becomes `sglang_lz.startup.launch`, which is a program of its own
because nothing in this folder may import sglang.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
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


def take(arguments: list[str], names: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Return the values of some arguments, the last one counts, and the other arguments."""
    values: dict[str, str] = {}
    rest, remaining = [], iter(arguments)
    for argument in remaining:
        name, has_value, value = argument.partition("=")
        if name in names:
            values.pop(name, None)  # the last one is last
            values[name] = value if has_value else next(remaining, "")
        else:
            rest.append(argument)
    return values, rest


def without_end_loops(arguments: list[str]) -> list[str]:
    """Replace `END_LOOPS` by `PREFERRED`, where the user's own keys win over `RECOMMENDED`.

    Raises DistError if the user's value there is not a JSON object, or if --config is given, whose
    file it would override.
    """
    if END_LOOPS not in arguments:
        return arguments
    values, rest = take([a for a in arguments if a != END_LOOPS], (PREFERRED,))
    if "--config" in take(rest, ("--config",))[0]:
        raise DistError(
            f"{END_LOOPS} must be left out with --config, whose file it would override; set "
            f"preferred-sampling-params to {json.dumps(RECOMMENDED)} there."
        )
    given = values.get(PREFERRED, "{}")
    try:
        return [*rest, PREFERRED, json.dumps({**RECOMMENDED, **json.loads(given)})]
    except (TypeError, ValueError):
        raise DistError(f"{PREFERRED} must be a JSON object, got {given[:80]!r}.") from None


def with_model(arguments: list[str]) -> list[str]:
    """Name a model's folder in place of `DEMO`, of a name of the catalogue, or of nothing.

    An id of the hub is left to upstream, unless the catalogue has it and no hub answers. With
    --config nothing changes.

    Raises PackageError if a model that was asked for cannot be fetched.
    """
    values, rest = take([a for a in arguments if a != DEMO], ("--model-path", "--model"))
    config, _ = take(rest, ("--config",))
    if DEMO in arguments and (values or config):
        raise DistError(f"{DEMO} must be left out with {' and '.join({**values, **config})}.")
    if config:
        return arguments
    name, folder = "demo", DEMO_MODEL
    if DEMO not in arguments:
        asked = [*values.values()][-1] if values else catalogue.DEFAULT
        model = catalogue.find(asked)
        if model is None or (values and Path(asked).is_dir()):
            return arguments
        if asked == model.hub:
            if catalogue.is_left_to_hub(asked):
                return arguments
            print(
                f"sglang-lz: no hub of models answers; serving {asked} in {model.quantization}, "
                f"{model.packed}, with the server's sampling defaults.",
                file=sys.stderr,
            )
        try:
            name, folder = asked, catalogue.obtain(model)
        except UnreachableError as error:
            if values:
                raise
            print(f"sglang-lz: {error} Serving the demo model instead.", file=sys.stderr)
    return ["--model-path", str(folder), "--served-model-name", name, *rest]


def server_arguments(
    flavour: str, arguments: list[str], environ: Mapping[str, str] = os.environ
) -> list[str]:
    """The arguments of sglang.launch_server: ours, then the user's, which override ours.

    With --config we add nothing, because arguments take precedence over that file, and ours would
    override the user's settings in it.
    """
    if "--config" in take(arguments, ("--config",))[0]:
        return arguments
    return [
        *["--host", environ.get(HOST, "127.0.0.1"), "--port", environ.get(PORT, DEFAULT_PORT)],
        *(CPU if flavour == "cpu" else []),
        *arguments,
    ]


def playground_command(arguments: list[str]) -> list[str]:
    """The command of the playground beside a server; DistError if that gets --config."""
    values, _ = take(arguments, ("--host", "--port", "--config"))
    if "--config" in values:
        raise DistError(f"{PLAYGROUND} must be left out with --config; run it beside the server.")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(values["--host"], values["--host"])
    server = f"http://{f'[{host}]' if ':' in host else host}:{values['--port']}"
    return [sys.executable, "-m", "sglang_lz", "playground", "--server", server]


def serve(arguments: list[str]) -> NoReturn:
    """Replace this process with the server; DistError if ours is not part of a patched sglang."""
    read = reader(PACKAGE.parent)
    if read(SEAL) is None:
        raise DistError(
            f"{PACKAGE} is not part of a patched sglang, so there is nothing to serve; in a "
            "checkout use scripts/serve, which builds one."
        )
    own = without_end_loops([argument for argument in arguments if argument != PLAYGROUND])
    own = server_arguments(Seal.read(read).flavour, with_model(own))
    folder = Path(take(own, ("--model-path", "--model"))[0].get("--model-path", ""))
    if folder == DEMO_MODEL or folder.parent == catalogue.models_folder():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing needs to be downloaded
    if folder == DEMO_MODEL:
        # The model is so small that more threads would only wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "sglang_lz.startup.launch", *own]
    if PLAYGROUND in arguments:
        # We have one thread.
        subprocess.Popen(playground_command(own), preexec_fn=ending_with_us())  # noqa: PLW1509
    print(f"sglang-lz: python {shlex.join(command[1:])}", file=sys.stderr, flush=True)
    os.execv(sys.executable, command)
