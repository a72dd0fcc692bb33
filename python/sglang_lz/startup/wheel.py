"""Reads wheel files, and what an installation keeps of one."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from pathlib import Path

from sglang_lz.startup.errors import DistError


class Wheel:
    """A wheel file opened for reading; close it, or use it in a ``with`` statement."""

    def __init__(self, path: Path) -> None:
        """Open ``path``; DistError if it is not a wheel."""
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DistError(f"{path} is not a readable wheel ({error}); name another.") from None
        self.names = sorted(n for n in self._zip.namelist() if not n.endswith("/"))
        infos = {n.split("/")[0] for n in self.names if n.split("/")[0].endswith(".dist-info")}
        if len(infos) != 1:
            raise DistError(f"{path} has not exactly one .dist-info, so it is not a wheel.")
        self.dist_info = infos.pop()

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, or None if it does not exist; DistError if it is damaged."""
        try:
            return self._zip.read(name)
        except KeyError:
            return None
        except (zipfile.BadZipFile, EOFError) as error:
            raise DistError(
                f"{self.path} is damaged at {name} ({error}); fetch it again."
            ) from None

    def is_executable(self, name: str) -> bool:
        """Whether a file's owner may execute it."""
        return bool(self._zip.getinfo(name).external_attr >> 16 & 0o100)


def record_row(path: str, data: bytes) -> str:
    """Return a file's row in RECORD, without the line ending."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([path, f"sha256={digest}", len(data)])
    return text.getvalue()


def metadata_version(metadata: bytes) -> str:
    """Return the Version of a METADATA file, or "" if it has none."""
    match = re.search(rb"^Version: *(\S+)", metadata.partition(b"\n\n")[0], re.M)
    return match[1].decode() if match else ""
