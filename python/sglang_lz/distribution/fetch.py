"""Fetches upstream's wheel: pip downloads it, and its sha256 must match the lock."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from .errors import DistError
from .lock import ARCHES, NAME, PYTHONS, Lock, WheelPin

PLATFORM = "manylinux_2_34"
"""The platform tag, without the machine, of the wheels that `bump` looks for."""


def fetch(lock: Lock, pin: WheelPin, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the pinned wheel in ``cache``, downloaded if it is not there yet and always verified.

    Raises DistError if pip cannot download it or its sha256 is not the pinned one. Such a file
    never enters the cache.
    """
    file = cache / pin.filename
    if file.exists():
        say(f"found {file}")
        verify(file, pin)
        return file
    with tempfile.TemporaryDirectory(prefix="sglang-lz-", dir=made(cache)) as folder:
        say(f"fetching {pin.filename} with pip")
        got = download(lock.version, pin.python, pin.arch, Path(folder))
        if got.name != pin.filename:
            raise DistError(f"pip got {got.name} where {pin.filename} is pinned.")
        verify(got, pin)
        os.replace(got, file)
    return file


def verify(file: Path, pin: WheelPin) -> None:
    """Raise DistError if ``file`` does not have the pinned sha256."""
    actual = sha256(file)
    if actual != pin.sha256:
        raise DistError(
            f"{file} has the sha256 {actual[:12]}…, not the pinned {pin.sha256[:12]}…; it is "
            "damaged or not upstream's release: delete it and run again."
        )


def sha256(file: Path) -> str:
    """Return the sha256 of a file (hex); DistError if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DistError(f"{file} cannot be read ({error.strerror}); name another.") from None


def download(version: str, python: str, arch: str, folder: Path) -> Path:
    """Download one platform wheel with pip into the empty ``folder`` and return it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--implementation=cp", f"--python-version={python[2]}.{python[3:]}"]
    command += [f"--abi={python}", f"--platform={PLATFORM}_{arch}", f"--dest={folder}"]
    command += [f"{NAME}=={version}"]
    result = subprocess.run(command, check=False, stdout=2, stderr=subprocess.PIPE, text=True)
    files = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(files) != 1:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise DistError(
            f"pip could not download {NAME} {version} for {python} on {arch} "
            f"({lines[-1].removeprefix('ERROR: ').rstrip('.')}); check the network and pip's index."
        )
    return files[0]


def pin_version(version: str, cache: Path, say: Callable[[str], None]) -> Lock:
    """Return a lock for an upstream release, downloading all of its platform wheels to ``cache``.

    The lock has our first revision of that release.
    """
    wheels = []
    for python in PYTHONS:
        for arch in ARCHES:
            with tempfile.TemporaryDirectory(prefix="sglang-lz-", dir=made(cache)) as folder:
                say(f"fetching {NAME} {version} for {python} on {arch}")
                got = download(version, python, arch, Path(folder))
                wheels.append(WheelPin(python, arch, got.name, sha256(got)))
                os.replace(got, cache / got.name)
    return Lock(version, 1, tuple(wheels))


def made(folder: Path) -> Path:
    """Return a folder, creating it if it does not exist; DistError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DistError(f"{folder} cannot be made ({error.strerror}); name another.") from None
    return folder
