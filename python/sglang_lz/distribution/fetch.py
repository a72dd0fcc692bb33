"""Fetches upstream's wheels: pip downloads them, and their sha256 must match the lock."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from .errors import DistError
from .lock import NAME, Lock, WheelPin

PLATFORM = "manylinux_2_34"  # of upstream's wheels, without the machine
Say = Callable[[str], None]
"""Shows a line about what is done."""


def fetch(lock: Lock, pin: WheelPin, cache: Path, say: Say) -> Path:
    """Return the pinned wheel in ``cache``, downloaded if it is not there yet and always verified.

    Raises DistError if pip cannot download it or its sha256 is not the pinned one. Such a file
    never enters the cache.
    """
    file = cache / pin.filename
    if not file.exists():
        return _download(lock.version, pin, cache, say)
    say(f"found {file}")
    verify(file, pin)
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


def pin(version: str, platforms: Iterable[tuple[str, str]], cache: Path, say: Say) -> Lock:
    """Return a lock of our first revision of an upstream release, with the wheels in ``cache``.

    ``platforms`` are the Python and the machine of each wheel.
    """
    wheels = []
    for python, arch in platforms:
        file = _download(version, WheelPin(python, arch, "", ""), cache, say)
        wheels.append(WheelPin(python, arch, file.name, sha256(file)))
    return Lock(version, 1, tuple(wheels))


def _download(version: str, wanted: WheelPin, cache: Path, say: Say) -> Path:
    """Download a wheel into ``cache``; DistError, and no file there, if it is not the pinned."""
    what = f"{NAME} {version} for {wanted.python} on {wanted.arch}"
    say(f"fetching {what} with pip")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sglang-lz-", dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += [f"--python-version={wanted.python[2]}.{wanted.python[3:]}"]
        command += ["--implementation=cp", f"--abi={wanted.python}"]
        command += [f"--platform={PLATFORM}_{wanted.arch}", f"--dest={folder}"]
        command += [f"{NAME}=={version}"]
        done = subprocess.run(command, check=False, stdout=2, stderr=subprocess.PIPE, text=True)
        files = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or len(files) != 1:
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise DistError(
                f"pip could not download {what} ({reason.removeprefix('ERROR: ').rstrip('.')}); "
                "check the network and pip's index."
            )
        if wanted.sha256:
            verify(files[0], wanted)
        os.replace(files[0], cache / files[0].name)
    return cache / files[0].name
