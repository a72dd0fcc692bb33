"""Fetches upstream's wheels: pip downloads them, and their sha256 must match the lock."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from sglang_lz.distribution.errors import DistError
from sglang_lz.distribution.lock import NAME, Lock, WheelPin
from sglang_lz.models import packages

PLATFORM = "manylinux_2_34"  # of upstream's wheels, without the machine
Say = Callable[[str], None]
"""Shows a line about what is done."""


def fetch(lock: Lock, pin: WheelPin, cache: Path, say: Say) -> Path:
    """Return the pinned wheel in ``cache``, downloaded if it is not there yet and always verified.

    Raises PackageError if pip cannot download it with the pinned sha256, and DistError if the file
    in the cache has another.
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
    """Download a wheel into ``cache``; PackageError, and no file there, if it is not the pinned."""
    say(f"fetching {NAME} {version} for {wanted.python} on {wanted.arch} with pip")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sglang-lz-", dir=cache) as folder:
        options = ["--only-binary=:all:", "--implementation=cp", f"--abi={wanted.python}"]
        options += [f"--python-version={wanted.python[2]}.{wanted.python[3:]}"]
        options += [f"--platform={PLATFORM}_{wanted.arch}"]
        packages.download({f"{NAME}=={version}": wanted.sha256}, Path(folder), *options)
        (file,) = Path(folder).iterdir()
        os.replace(file, cache / file.name)
    return cache / file.name
