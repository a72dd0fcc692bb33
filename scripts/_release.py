"""scripts/release: its arguments, and the environment in which _make_release.py runs.

The environment contains only what is needed to build and sign a release, because the secret key is
read in it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import _supervise
from _checkout import ROOT
from _environment import CACHE, SetupError, Step, digest, do_steps, main

FOLDER = ROOT / ".venv" / "release"
REQUIREMENTS = ROOT / "scripts" / "release.lock"
PASSWORD = "SGLANG_LZ_KEY_PASSWORD"

DESCRIPTION = """\
Make all files of a release from the commit that is checked out, and sign them: every wheel, an SBOM
for each wheel and each image with a lock file, provenance.json, SHA256SUMS, SHA256SUMS.minisig.
docs/MAINTAINING.md says what is in them. The same commit gives the same bytes.

The folder appears when everything in it has been made and verified. A checkout with changes is
refused. Set-up is in .venv/release, upstream's wheels are in .cache/upstream.
"""
EPILOG = f"""\
environment:
  {PASSWORD}  the key's password; without it, it is asked for

examples:
  scripts/release --new-key ~/sglang-lz.key             once, ever
  scripts/release --key ~/sglang-lz.key --out dist/release
  scripts/release --out /tmp/again                      no key: to compare SHA256SUMS
  scripts/release --only cp311,x86_64,cpu --out /tmp/one
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the arguments: `out`, `key`, `new_key` and `only`."""
    parser = argparse.ArgumentParser(
        prog="scripts/release",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=ROOT / "dist" / "release",
        help="a folder that does not exist yet (default: dist/release)",
    )
    parser.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="a secret key of minisign; without, unsigned. `scripts/test full` must have passed",
    )
    parser.add_argument(
        "--new-key",
        type=Path,
        metavar="FILE",
        help="make a secret key, with its public key in FILE.pub, and nothing else",
    )
    parser.add_argument(
        "--only",
        metavar="WORD,WORD",
        help="make only the wheels of these Pythons (cp311), machines (x86_64), flavours (cpu)",
    )
    return parser.parse_args(arguments)


def release(arguments: list[str]) -> int:
    """Run the script; does not return if the environment can be created."""
    parse(arguments)  # so that -h and usage errors need no environment
    python = FOLDER / "bin" / "python"
    if not python.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    made_from = digest(ROOT, [REQUIREMENTS], version, str(FOLDER))
    step = Step(
        f"making {FOLDER.relative_to(ROOT)} with Python {version}",
        FOLDER / "stamp",
        made_from,
        _make,
    )
    do_steps([step], CACHE / "setup.lock")
    script = ROOT / "scripts" / "_make_release.py"
    # Replace this process, so that the password prompt can use its terminal.
    env = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    os.execve(python, [str(python), "-B", str(script), *arguments], env)


def _make() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    install = ["-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    for command in (
        [sys.executable, "-m", "venv", str(FOLDER)],
        [str(FOLDER / "bin" / "python"), *install, "--requirement", str(REQUIREMENTS)],
    ):
        if _supervise.run(command, env=os.environ, cwd=ROOT):
            raise SetupError(f"{FOLDER} could not be made, see the lines above; run this again.")


if __name__ == "__main__":
    main(release)
