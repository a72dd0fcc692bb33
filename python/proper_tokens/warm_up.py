"""Prepares, in a separate process, what the first request with proper tokens would wait for.

Once for each installation, the tokenizer must be prepared, which takes seconds of Python, and the
kernels must be compiled, which takes a minute or more. In the scheduler's process, all other
requests would have to wait for that. The results are cached on disk, where the scheduler finds
them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys

from proper_tokens.compiled import is_kept
from proper_tokens.compiler import environment
from proper_tokens.kernels import masks, plain_walk, walk
from proper_tokens.language import language_of
from proper_tokens.prepared import Prepared, cache_directory, key_of, prepare
from proper_tokens.product import Product
from proper_tokens.rules import ANY_TEXT, Rules
from proper_tokens.tokenizer import Unsupported

logger = logging.getLogger(__name__)

SECONDS = 900
"""Time limit of the process, in seconds; generous, for busy machines."""
_NICENESS = 5
_COMPILED = (masks.combine, plain_walk.walk_plain, walk.step)
"""Functions that are compiled last, one of each module that `product` calls."""


def prepare_in_own_process(text: str) -> None:
    """Prepare a tokenizer and compile the kernels, so that both are cached on disk.

    If that fails, they are missing from the cache, and the code that needs them builds them.

    Args:
        text: its `tokenizer.json`.
    """
    if all(map(is_kept, _COMPILED)) and (cache_directory() / f"{key_of(text)}.npz").exists():
        return
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=text.encode(),
            timeout=SECONDS,
            env=environment(),
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("Proper tokens: they could not be prepared apart: %s", error)


def compile_all(prepared: Prepared) -> None:
    """Call all compiled functions.

    Numba compiles a function when it is called first, or loads it from its cache. Both take too
    long for a scheduler's thread.
    """
    Product(prepared, language_of(Rules(ANY_TEXT))).compile_all()


if __name__ == "__main__":
    os.nice(_NICENESS)
    with contextlib.suppress(Unsupported):  # the parent process will find that out as well
        compile_all(prepare(sys.stdin.buffer.read().decode()))
