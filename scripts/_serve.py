"""scripts/serve: sets up the patched SGLang, then starts its server.

The server is that of `sglang-lz serve` in the new environment. It runs below this process, which
outlives it to remove the temporary folder and what a server that was killed leaves behind.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import _supervise
from _environment import (
    Environment,
    detect_flavour,
    main,
    parse_flavour,
    say,
    split_option,
)

USAGE = """\
usage: scripts/serve [--flavour cpu|cuda] [--end-loops] [--playground] [argument ...]

Set up the patched SGLang inside this checkout, once, and start its server on 127.0.0.1:30000.
Without --model-path it serves the demo model, under the name "demo". Ctrl-C ends everything.

  --flavour cpu|cuda   default: cuda on a machine with an NVIDIA GPU, else cpu

  --end-loops          end loops in every request that says nothing else: the recommended lz_penalty
                       and lz_onset, and the loop guard (in --preferred-sampling-params, where your
                       own keys win)
  --playground         also serve a page that shows what the penalty does to an output and why, on
                       http://127.0.0.1:30080

All other arguments go to sglang.launch_server and win over what this script sets:
    scripts/serve --end-loops --port 8000 --model-path Qwen/Qwen2.5-0.5B-Instruct
Its own list, once set up: .venv/cpu/bin/python -m sglang.launch_server --help

environment:
  PYTHON               the Python 3.11, 3.12 or 3.13 to use (default: the first that is found)
  SGLANG_LZ_FLAVOUR    as --flavour
  SGLANG_LZ_HOST       as --host (default: 127.0.0.1)
  SGLANG_LZ_PORT       as --port (default: 30000)
  HF_HOME              where downloaded models are (default: inside the checkout)
  PIP_CACHE_DIR        where pip keeps downloads (default: inside the checkout)
  PIP_...              any setting of pip, such as another index
"""


def serve(arguments: list[str]) -> int:
    """Run the script; return its exit status."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    began = time.monotonic()
    wanted, rest = split_option("--flavour", arguments)
    flavour = detect_flavour(os.environ) if wanted is None else parse_flavour(wanted, "--flavour")
    environment = Environment(flavour)
    environment.set_up()
    what = f"the {flavour} flavour of SGLang {environment.release}"
    say(f"ready to launch {what} after {time.monotonic() - began:.1f} s")
    with environment.temporary_folder():
        command = [str(environment.folder / "bin" / "sglang-lz"), "serve", *rest]
        return _supervise.run(command, env=environment.variables(), cwd=Path.cwd())


if __name__ == "__main__":
    main(serve)
