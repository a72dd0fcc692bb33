"""Upstream's release: the lock file pins its wheels, pip downloads them, the sha256 must match."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from _checkout import ROOT
from sglang_lz.models import packages
from sglang_lz.startup.command_line import say
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import NAME

PATCHES = ROOT / "patches"
"""The folder of the release's folder, which holds `LOCK`, `series`, `reviewed-modes`, patches."""
LOCK = "upstream.lock"
PYTHONS = ("cp311", "cp312", "cp313")
ARCHES = ("x86_64", "aarch64")
PLATFORM = "manylinux_2_34"  # of upstream's wheels, without the machine

_HEADER = """\
# The upstream release that the patches are for. Written by `scripts/patches bump VERSION`.
# Only `revision`, the N of our version {version}+lzN, is edited by hand: raise it for each release.
"""


@dataclass(frozen=True)
class WheelPin:
    """One pinned platform wheel: its tags, its file name and the sha256 of its bytes (hex)."""

    python: str
    arch: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class Lock:
    """The pinned upstream release, and our revision of it."""

    version: str
    revision: int
    wheels: tuple[WheelPin, ...]

    @classmethod
    def load(cls, path: Path) -> Lock:
        """Read a lock file; DistError if it is missing or malformed."""
        try:
            data = tomllib.loads(path.read_text("utf-8"))
            wheels = tuple(WheelPin(**{k: str(v) for k, v in w.items()}) for w in data["wheel"])
            if data["name"] != NAME:
                raise ValueError(f"it pins {data['name']}")
            if not all(re.fullmatch(r"[0-9a-f]{64}", wheel.sha256) for wheel in wheels):
                raise ValueError("a sha256 is malformed")
            return cls(str(data["version"]), int(data["revision"]), wheels)
        except FileNotFoundError:
            raise DistError(f"{path} is missing; restore it with git.") from None
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
            raise DistError(f"{path} is not a lock file ({error}); restore it with git.") from None

    def dump(self) -> str:
        """Return the text of the lock file; ``load`` reads it back."""
        text = _HEADER.format(version=self.version)
        text += f'name = "{NAME}"\nversion = "{self.version}"\nrevision = {self.revision}\n'
        for wheel in self.wheels:
            text += f'\n[[wheel]]\npython = "{wheel.python}"\narch = "{wheel.arch}"\n'
            text += f'filename = "{wheel.filename}"\nsha256 = "{wheel.sha256}"\n'
        return text

    def select(self, python: str | None = None, arch: str | None = None) -> WheelPin:
        """Return the wheel for a Python tag and machine, by default the current ones."""
        python = python or f"cp{sys.version_info.major}{sys.version_info.minor}"
        arch = arch or platform.machine()
        for wheel in self.wheels:
            if (wheel.python, wheel.arch) == (python, arch):
                return wheel
        raise DistError(
            f"No wheel is pinned for Python {python} on {arch}: the patches are for "
            f"{self.describe()}; name one with --python and --arch."
        )

    def describe(self) -> str:
        """Return the release and its platforms, for a message."""
        return f"{NAME} {self.version} ({', '.join(f'{w.python} {w.arch}' for w in self.wheels)})"

    def local_version(self, revision: int, flavour: str) -> str:
        """Return our version of the release, for example ``0.5.23+lz1`` or ``0.5.23+lz1.cpu``."""
        return f"{self.version}+lz{revision}" + (".cpu" if flavour == "cpu" else "")


def release_dir(patches: Path = PATCHES) -> Path:
    """Return the folder of the one release that the patches are for, which is its name.

    Raises DistError if there is not just one.
    """
    found = sorted(path.parent for path in patches.glob(f"*/{LOCK}"))
    if len(found) != 1:
        raise DistError(f"{patches} holds {len(found)} releases, not one; restore it with git.")
    return found[0]


def fetch(lock: Lock, pin: WheelPin, cache: Path) -> Path:
    """Return the pinned wheel in ``cache``, downloaded if it is not there yet and always verified.

    Raises PackageError if pip cannot download it with the pinned sha256, and DistError if the file
    in the cache has another.
    """
    file = cache / pin.filename
    if not file.exists():
        return _download(lock.version, pin, cache)
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


def pin(version: str, platforms: Iterable[tuple[str, str]], cache: Path) -> Lock:
    """Return a lock of our first revision of an upstream release, with the wheels in ``cache``.

    ``platforms`` are the Python and the machine of each wheel.
    """
    wheels = []
    for python, arch in platforms:
        file = _download(version, WheelPin(python, arch, "", ""), cache)
        wheels.append(WheelPin(python, arch, file.name, sha256(file)))
    return Lock(version, 1, tuple(wheels))


def _download(version: str, wanted: WheelPin, cache: Path) -> Path:
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
