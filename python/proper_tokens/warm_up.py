"""Prepares, in a separate process, what the first request with proper tokens would wait for.

The tokenizer must be prepared, which takes seconds of Python, and once for each installation, the
kernels must be compiled, which takes a minute or more. In the scheduler's process, all other
requests would have to wait for that. The kernels are cached on disk, where the scheduler finds
them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys

import numpy as np

from proper_tokens.compiler import environment
from proper_tokens.language import language_of
from proper_tokens.prepared import Prepared, prepare, prepared_arrays
from proper_tokens.product import Product
from proper_tokens.rules import ANY_TEXT, Rules
from proper_tokens.tokenizer import Unsupported

logger = logging.getLogger(__name__)

SECONDS = 900
"""Time limit of the process, in seconds; generous, for busy machines."""
_NICENESS = 5


def prepare_in_own_process(text: str) -> Prepared:
    """Prepare a tokenizer and compile the kernels. If that process fails, this one prepares it.

    Args:
        text: its `tokenizer.json`.

    Raises:
        Unsupported: it has a feature that is not modelled.
    """
    try:
        with open(os.memfd_create("prepared"), "rb") as memory:
            subprocess.run(
                [sys.executable, "-P", "-m", __name__, str(memory.fileno())],
                input=text.encode(),
                pass_fds=[memory.fileno()],
                timeout=SECONDS,
                env=environment(),
                check=True,
            )
            if memory.seek(0, os.SEEK_END):
                memory.seek(0)
                with np.load(memory, allow_pickle=False) as file:
                    return Prepared(dict(file))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("Proper tokens: they could not be prepared apart: %s", error)
    return prepare(text)


def compile_all(prepared: Prepared) -> None:
    """Call all compiled functions.

    Numba compiles a function when it is called first, or loads it from its cache. Both take too
    long for a scheduler's thread.
    """
    Product(prepared, language_of(Rules(ANY_TEXT))).compile_all()


if __name__ == "__main__":
    os.nice(_NICENESS)
    with contextlib.suppress(Unsupported):  # the parent process will find that out as well
        arrays = prepared_arrays(sys.stdin.buffer.read().decode())
        compile_all(Prepared(arrays))
        with open(int(sys.argv[1]), "wb") as memory:
            np.savez(memory, **arrays)  # type: ignore[arg-type]
