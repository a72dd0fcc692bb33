"""Downloads packages of pip's index by their sha256; nothing is installed or imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class PackageError(Exception):
    """Why a package, or what it holds, is not here, in a sentence for the user."""


class UnreachableError(PackageError):
    """pip could not reach the packages."""


def download(
    pins: Mapping[str, str], folder: Path, *options: str, environ: Mapping[str, str] = os.environ
) -> None:
    """Download packages into ``folder``.

    Args:
        pins: the sha256 (hex) of each package by its requirement; either all are known, or those
            of none, which are empty then.
        folder: pip makes it.
        options: further arguments of `pip download`.
        environ: pip's environment variables.

    Raises:
        UnreachableError: pip cannot download one.
        PackageError: one has another sha256; it is not in the folder.
    """
    lines = [f"{pin} --hash=sha256:{sha}" if sha else pin for pin, sha in pins.items()]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", f"--dest={folder}", *options]
    done = subprocess.run(
        [*command, "--requirement=/dev/stdin"],
        check=False,
        input="\n".join(lines),
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    if done.returncode == 0:
        return
    names = ", ".join(pins)
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise PackageError(f"A package of {names} has another sha256 than the pinned one.")
    reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
    raise UnreachableError(
        f"pip could not download {names} ({reason.removeprefix('ERROR: ').rstrip('.')}); check "
        "the network and pip's index."
    )
