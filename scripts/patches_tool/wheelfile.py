"""Reads upstream's wheels, edits their metadata, and writes ours reproducibly."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from sglang_lz.startup.errors import DistError

NOTICE = "licenses/NOTICE.sglang-lz"
"""Below dist-info: which of upstream's files we changed (Apache License 2.0, section 4(b))."""
SCRIPT = b"sglang-lz = sglang_lz.cli:main"


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


def write_wheel(out: Path, upstream: Wheel, dist_info: str, changes: Mapping[str, bytes]) -> None:
    """Write ``upstream`` with ``changes`` (path to bytes, added or replaced) as the wheel ``out``.

    Upstream's .dist-info becomes ``dist_info``, with a new RECORD. The same input and zlib give the
    same bytes. ``out`` is created by a rename once it is complete.
    """
    record = f"{dist_info}/RECORD"
    old = re.compile(rf"^{re.escape(upstream.dist_info)}/")
    kept = {old.sub(f"{dist_info}/", name): name for name in upstream.names}
    names = sorted({*kept, *changes} - {record}, key=lambda n: (n.startswith(dist_info), n))
    rows = []
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".sglang-lz-", dir=out.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name in names:
                data = changes[name] if name in changes else upstream.read(kept[name]) or b""
                _add(archive, name, data, name in kept and upstream.is_executable(kept[name]))
                rows.append(f"{record_row(name, data)}\n")
            _add(archive, record, f"{''.join(rows)}{record},,\n".encode(), False)
        os.chmod(temporary, 0o644)
        os.replace(temporary, out)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DistError(
                f"{out} cannot be written ({error.strerror}); free space or name another --out."
            ) from error
        raise


def edit_record(record: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Return an installed RECORD with rows replaced or appended (bytes) or removed (None)."""
    lines = record.decode("utf-8").splitlines(keepends=True)
    end = "\r\n" if lines and lines[-1].endswith("\r\n") else "\n"
    left = dict(sorted(changes.items()))
    result = []
    for line in lines:
        path = next(csv.reader([line]))[0]
        if path not in changes:
            result.append(line)
        elif (data := left.pop(path)) is not None:
            result.append(record_row(path, data) + end)
    result += [record_row(path, data) + end for path, data in left.items() if data is not None]
    return "".join(result).encode()


def edit_metadata(
    metadata: bytes, version: str, requires: Iterable[str] | None = None, notice: bool = False
) -> bytes:
    """Return METADATA with another version and, if given, our requirements (no extras), notice."""
    head, blank, rest = metadata.partition(b"\n\n")
    headers = head.decode("utf-8").rstrip("\n") + "\n"
    headers = re.sub(r"^Version: .*$", f"Version: {version}", headers, count=1, flags=re.M)
    if requires is not None:
        headers = re.sub(r"^(?:Requires-Dist|Provides-Extra): .*\n", "", headers, flags=re.M)
        headers += "".join(f"Requires-Dist: {line}\n" for line in requires)
    if notice:
        headers += f"License-File: {NOTICE.removeprefix('licenses/')}\n"
    return headers.encode() + blank[1:] + rest


def edit_entry_points(entry_points: bytes) -> bytes:
    """Return entry_points.txt with our console script added; DistError without its section."""
    section = b"[console_scripts]\n"
    if section not in entry_points:
        raise DistError("upstream's entry_points.txt has no [console_scripts]; add it here.")
    return entry_points.replace(section, section + SCRIPT + b"\n", 1)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, executable: bool) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3
    info.external_attr = (0o100755 if executable else 0o100644) << 16
    archive.writestr(info, data)
