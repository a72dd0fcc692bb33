"""scripts/release: its arguments, and the environment in which _make_release.py runs.

The environment contains only what is needed to build and sign a release, because the secret key is
read in it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from _checkout import ROOT
from _environment import SCRIPTS, do_steps, environment_step, main, temporary_folder, uv_step

FOLDER = ROOT / ".venv" / "release"
LOCK = SCRIPTS / "release.lock"
PASSWORD = "SGLANG_LZ_KEY_PASSWORD"

DESCRIPTION = """\
Make all files of a release from the commit that is checked out, and sign them; docs/MAINTAINING.md
describes them. The same commit gives the same bytes. A checkout with changes is refused.
"""
EPILOG = f"{PASSWORD} is the key's password; without it, it is asked for."


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the arguments: `out`, `key` and `only`."""
    parser = argparse.ArgumentParser("scripts/release", None, DESCRIPTION, EPILOG)
    out = "a folder that does not exist yet (default: dist/release)"
    parser.add_argument("--out", type=Path, metavar="DIR", default=ROOT / "dist/release", help=out)
    key = "a secret key of minisign; `scripts/test full` must have passed"
    parser.add_argument("--key", type=Path, metavar="FILE", help=key)
    only = "only the wheels of these Pythons (cp311), machines (x86_64) and flavours (cpu)"
    parser.add_argument("--only", metavar="WORD,WORD", help=only)
    given = parser.parse_args(arguments)
    given.out = given.out.absolute()
    return given


def release(arguments: list[str]) -> int:
    """Run the script; does not return if the environment can be created."""
    parse(arguments)  # so that -h and usage errors need no environment
    locked = ("--no-deps", "--only-binary=:all:", "--require-hashes", f"--requirement={LOCK}")
    with temporary_folder():
        do_steps([uv_step(), environment_step(FOLDER, "what makes a release", [LOCK], *locked)])
    # Replace this process, so that the password prompt can use its terminal.
    python, script = FOLDER / "bin" / "python", SCRIPTS / "_make_release.py"
    os.execv(python, [str(python), "-B", str(script), *arguments])


if __name__ == "__main__":
    main(release)
