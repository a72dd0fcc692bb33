"""``sglang-lz serve``: start the server of the sglang that this package is part of."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from .errors import DistError
from .seal import SEAL, Seal, reader
from .sources import PACKAGE

DEMO_MODEL = PACKAGE / "demo" / "model"
HOST, PORT = "SGLANG_LZ_HOST", "SGLANG_LZ_PORT"

DEMO = ["--model-path", str(DEMO_MODEL), "--served-model-name", "demo"]
CPU = [
    # The same text on every CPU: in bfloat16 greedy decoding differs between them.
    *["--dtype", "float32"],
    # Upstream would reserve 72 % of the memory for the cache, and touch it at start-up.
    *["--max-total-tokens", "32768", "--max-running-requests", "64"],
    "--sleep-on-idle",  # upstream would keep a core busy with waiting
]


def names_model(arguments: list[str]) -> bool:
    """Whether the user says what to serve."""
    return any(a.partition("=")[0] in ("--model-path", "--model") for a in arguments)


def server_arguments(
    flavour: str, arguments: list[str], environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Arguments of sglang.launch_server: ours, then the user's, of which the last counts.

    With --config we add nothing: upstream lets arguments win over that file, and ours would.

    Args:
        flavour: "cpu" or "cuda".
        arguments: the user's.
        environ: the environment, of which `HOST` and `PORT` count.
    """
    if any(a.partition("=")[0] == "--config" for a in arguments):
        return arguments
    return [
        *["--host", environ.get(HOST, "127.0.0.1"), "--port", environ.get(PORT, "30000")],
        *(CPU if flavour == "cpu" else []),
        *([] if names_model(arguments) else DEMO),
        *arguments,
    ]


def serve(arguments: list[str]) -> NoReturn:
    """Become the server, in this process, so that signals and the exit status are its own.

    Raises:
        DistError: this package is not part of a built or patched sglang.
    """
    data = reader(PACKAGE.parent)(SEAL)
    if data is None:
        raise DistError(
            f"{PACKAGE} is not part of a patched sglang, so there is nothing to serve; in a "
            "checkout use scripts/serve, which builds one."
        )
    arguments = server_arguments(Seal.parse(data).flavour, arguments)
    if str(DEMO_MODEL) in arguments:
        os.environ["HF_HUB_OFFLINE"] = "1"  # nothing to look for outside
        # So small that threads only wait on each other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "sglang_lz.launch_server", *arguments]
    print(f"sglang-lz: python {' '.join(command[1:])}", file=sys.stderr, flush=True)
    os.execv(sys.executable, command)
