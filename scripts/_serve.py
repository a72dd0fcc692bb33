"""scripts/serve: sets up the patched SGLang, then starts its server.

The server is that of `sglang-lz serve` in the new environment. It runs below this process, which
outlives it to remove the temporary folder and what a server that was killed leaves behind.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import _supervise
from _environment import FLAVOURS, Environment, detect_flavour, main, say, temporary_folder

USAGE = "scripts/serve [--flavour cpu|cuda] [--end-loops] [--playground] [--demo] [argument ...]"
DESCRIPTION = """\
Set up the patched SGLang inside this checkout, once, and start its server on 127.0.0.1:30000.
Without --model-path it serves SmolLM2-135M-Instruct, which it fetches once (93 MB), under the name
"smollm2-135m". Ctrl-C ends everything.
"""
EPILOG = """\
  --end-loops          end loops: the recommended lz_penalty, lz_onset and loop guard for all
  --demo               serve the model of the tests, which needs no network and writes nonsense
  --playground         also serve a page that shows the penalty at work, on http://127.0.0.1:30080

All other arguments go to sglang.launch_server and win over what this script sets:
    scripts/serve --end-loops --port 8000 --model-path Qwen/Qwen2.5-0.5B-Instruct
Once set up, `.venv/cpu/bin/sglang-lz models` lists other names that --model-path takes.

environment:
  PYTHON               the Python 3.11, 3.12 or 3.13 to use (default: the first that is found)
  SGLANG_LZ_FLAVOUR    as --flavour
  SGLANG_LZ_HOST       as --host (default: 127.0.0.1)
  SGLANG_LZ_PORT       as --port (default: 30000)
  SGLANG_LZ_MODELS     where models of pip's index are (default: inside the checkout)
  HF_HOME              where downloaded models are (default: inside the checkout)
  UV_..., PIP_...      any setting of uv or pip, such as another index
"""


def serve(arguments: list[str]) -> int:
    """Run the script; return its exit status."""
    plain, texts = argparse.RawDescriptionHelpFormatter, (USAGE, DESCRIPTION, EPILOG)
    parser = argparse.ArgumentParser(None, *texts, formatter_class=plain, allow_abbrev=False)
    default = "default: cuda on a machine with an NVIDIA GPU"
    parser.add_argument("--flavour", choices=FLAVOURS, help=default)
    given, rest = parser.parse_known_args(arguments)
    environment = Environment(given.flavour or detect_flavour(os.environ))
    environment.set_up()
    say(f"starting the {environment.flavour} flavour of SGLang")
    with temporary_folder():
        command = [str(environment.folder / "bin" / "sglang-lz"), "serve", *rest]
        return _supervise.run(command, env=environment.variables(), cwd=Path.cwd())


if __name__ == "__main__":
    main(serve)
