"""The texts that the looping models learn: prose and code, the same bytes wherever they are read.

`prose` is Django's documentation in reST (BSD-3-Clause), from a source distribution pinned by its
sha256, and CPython's documentation topics (PSF-2.0). `code` is CPython's standard library
(PSF-2.0). Both parts of CPython differ between its versions, so `sha256` names what was read.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from bench.harm import archives

# Tests and tables of characters are long and hardly code.
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "encodings", "turtledemo"}


def prose() -> list[str]:
    """The documents of Django's and of CPython's documentation, sorted by name.

    Raises:
        SystemExit: the source distribution cannot be had, or is another one.
    """
    documents = [
        data.decode()
        for name, data in sorted(archives.files("Django").items())
        if _is_document(name)
    ]
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
    return name.startswith("docs/") and name.endswith(".txt")
