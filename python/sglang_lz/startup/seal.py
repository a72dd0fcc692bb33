"""The seal: lists what a patched sglang consists of, with the sha256 of every file we changed.

It is stored as sglang_lz/seal.json beside the patched ``sglang``. `doctor` and the server's
start-up check it; reading and hashing take a few milliseconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from sglang_lz.startup.errors import DistError

NAME = "sglang"
PACKAGES = ("lz_penalty", "proper_tokens", "sglang_lz")
"""Our packages, which are installed beside it."""
SEAL = "sglang_lz/seal.json"
Read = Callable[[str], bytes | None]
"""Reads a file by its path below the root; None if there is none."""


@dataclass(frozen=True)
class Seal:
    """The build, and its inputs.

    ``version`` is ours (0.5.23+lz1), ``upstream`` is the release that it is built from. ``files``
    maps paths below the root to sha256 (hex).
    """

    version: str
    upstream: str
    flavour: str
    made_by: Literal["build", "apply"]
    groups: Sequence[str]
    patches: Sequence[str]
    files: dict[str, str]

    def dump(self) -> bytes:
        """Return the bytes of seal.json."""
        return (json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def read(cls, read: Read) -> Seal:
        """Return the seal among the files that ``read`` returns; DistError if there is none."""
        data = read(SEAL)
        if data is None:
            raise DistError(f"{SEAL} is missing: this is a stock sglang; install our wheel.")
        try:
            fields = json.loads(data)
            return cls(**fields | {"files": dict(fields["files"])})
        except (KeyError, TypeError, ValueError) as error:
            raise DistError(f"{SEAL} cannot be read ({error}); install our wheel anew.") from None

    def problems(self, read: Read) -> list[str]:
        """Return one sentence for each sealed file that is missing or changed."""
        found = []
        for path, expected in self.files.items():
            data = read(path)
            if data is None:
                found.append(f"{path} is missing")
            elif hashlib.sha256(data).hexdigest() != expected:
                found.append(f"{path} was changed after it was sealed")
        return found


def reader(root: Path) -> Read:
    """Return a function that reads files below ``root``, or returns None if there is none."""

    def read(path: str) -> bytes | None:
        file = root / path
        return file.read_bytes() if file.is_file() else None

    return read


def verify_imported(sglang: ModuleType) -> list[str]:
    """Return the problems of an imported sglang, which may be a copy that is not beside ours."""
    # Folders are resolved rather than files, because some or all installed files may be links.
    ours = Path(__file__).parent.resolve().parent.parent
    theirs = Path(sglang.__file__ or "").parent.resolve().parent
    if theirs != ours:
        return [f"sglang is imported from {theirs}, not from {ours}, which is ours"]
    try:
        return Seal.read(reader(ours)).problems(reader(ours))
    except DistError as error:
        return [str(error)]
