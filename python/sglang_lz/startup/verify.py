"""`verify`: checks whether a file belongs to a signed release, as made by scripts/release.

The signature authenticates SHA256SUMS, and SHA256SUMS authenticates every other file by its sha256.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from itertools import groupby
from pathlib import Path
from typing import Any

from sglang_lz.startup.doctor import Check
from sglang_lz.startup.errors import DistError

SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.minisig"
PROVENANCE = "provenance.json"
SBOM = ".cdx.json"
"""The suffix that a file's SBOM adds to the file's own name."""
LARGEST = 64 * 2**20  # bytes of a file that is read whole


def examine_files(files: Iterable[Path], public_key: str) -> Iterator[Check]:
    """Check files in release folders, each wheel with its SBOM and the provenance.

    ``public_key`` is minisign's, as text or as the path of a file. Raises DistError if a file, the
    signature or the library is missing, or the key is not valid.
    """
    key = _public_key(public_key)
    for folder, own in groupby(files, lambda file: file.parent):
        check, sums = _sums(folder, key)
        yield check
        for file in own if check.ok else ():
            if not file.is_file():
                raise DistError(f"{file} is not a file; name files of a release.")
            if file.name in (SUMS, SIGNATURE):
                continue
            yield _listed("sha256", file, sums)
            if file.suffix == ".whl":
                yield _listed("SBOM", file.with_name(file.name + SBOM), sums)
                yield _listed("provenance", file.with_name(PROVENANCE), sums)


def _public_key(text: str) -> Any:
    try:
        import minisign  # a third-party library that nothing else needs
    except ImportError:
        raise DistError(
            "verify needs py-minisign: `pip install py-minisign` (or see docs/DEPLOY.md)."
        ) from None
    # Text first: a downloaded folder might contain a file of that name, with another key.
    with contextlib.suppress(ValueError):
        return minisign.PublicKey.from_base64(text)
    try:
        return minisign.PublicKey.from_bytes(_read(Path(text)) if Path(text).is_file() else b"")
    except ValueError as error:
        raise DistError(
            f"--public-key {text} is no file and no text of a minisign public key ({error})."
        ) from None


def _sums(folder: Path, key: Any) -> tuple[Check, Mapping[str, str]]:
    """Check the signature; return what SHA256SUMS lists, or nothing if it is not authentic."""
    import minisign

    data, signature = (_read(folder / name) for name in (SUMS, SIGNATURE))
    try:
        signed = minisign.Signature.from_bytes(signature)
        # Otherwise, the signature of a file's hash would also be valid for a file that contains
        # that hash.
        if not signed.is_prehashed():
            raise minisign.VerifyError("legacy signature, of no hash")
        key.verify(data, signed)
    except ValueError as error:
        found = f"{folder / SIGNATURE} does not sign {SUMS} with this key ({error})"
        return Check("signature", False, found), {}
    lines = re.findall(r"^([0-9a-f]{64})  (.+)$", data.decode("utf-8", "replace"), re.M)
    found = f"{folder / SUMS}, signed: {signed.trusted_comment}"
    return Check("signature", True, found), {name: digest for digest, name in lines}


def _read(file: Path) -> bytes:
    """The content of a small file, which is not authenticated yet and may be anything."""
    with _opened(file) as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise _unreadable(file, f"larger than {LARGEST} bytes")
    return data


def _opened(file: Path) -> BufferedReader:
    """Open a regular file or a link to one. Opening a pipe would block forever."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(file, error.strerror) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unreadable(file, "not a regular file")
    return os.fdopen(descriptor, "rb")


def _unreadable(file: Path, why: str | None) -> DistError:
    return DistError(f"{file} cannot be read ({why}); a release has it beside its files.")


def _listed(check: str, file: Path, sums: Mapping[str, str]) -> Check:
    """Check that a file's sha256 is the one in SHA256SUMS."""
    try:
        with _opened(file) as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except DistError as error:
        return Check(check, False, str(error))
    expected = sums.get(file.name)
    found = f"{file.name}, {digest}"
    if expected is None:
        found = f"{file.name} is not in {SUMS}, so it is not of this release"
    elif digest != expected:
        found = f"{file.name} has the sha256 {digest}; {SUMS} has {expected}"
    return Check(check, digest == expected, found)
