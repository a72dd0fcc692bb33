"""The lock file: upstream's version, our revision, and the sha256 of every platform wheel."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from sglang_lz.distribution.errors import DistError

NAME = "sglang"
PYTHONS = ("cp311", "cp312", "cp313")
ARCHES = ("x86_64", "aarch64")

_HEADER = """\
# The upstream release that the patches are for. Written by `sglang-lz bump VERSION`.
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
