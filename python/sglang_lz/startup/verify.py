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
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from sglang_lz.startup.doctor import Check, checked, examine_wheel
from sglang_lz.startup.errors import DistError

SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.minisig"
PROVENANCE = "provenance.json"
SBOM = ".cdx.json"
"""The suffix that a file's SBOM adds to the file's own name."""
LARGEST = 64 * 2**20  # bytes of a file that is read whole


def examine_files(files: Iterable[Path], public_key: str) -> Iterator[Check]:
    """Check files in release folders; with a wheel its SBOM, the provenance, and its contents.

    ``public_key`` is minisign's, as text or as the path of a file. Raises DistError if a file, the
    signature or the library is missing, or the key is not valid.
    """
    key = _public_key(public_key)
    folders: dict[Path, Mapping[str, str] | None] = {}
    for file in files:
        if not file.is_file():
            raise DistError(f"{file} is not a file; name files of a release.")
        folder = file.parent
        if folder not in folders:
            check, folders[folder] = _sums(folder, key)
            yield check
        sums = folders[folder]
        if sums is None or file.name in (SUMS, SIGNATURE):
            continue
        digest = checked("sha256", partial(_listed, file, sums))
        yield digest
        if digest.ok and file.suffix == ".whl":  # only then may we read what is in it
            for name, beside in (("SBOM", file.name + SBOM), ("provenance", PROVENANCE)):
                yield checked(name, partial(_listed, file.with_name(beside), sums))
            yield from examine_wheel(file)


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


def _sums(folder: Path, key: Any) -> tuple[Check, Mapping[str, str] | None]:
    """Check the signature; return what SHA256SUMS lists, or None if it is not authentic."""
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
        return Check("signature", False, found), None
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


def _listed(file: Path, sums: Mapping[str, str]) -> str:
    """Return a file's name and sha256; DistError if that is not the one in SHA256SUMS."""
    if file.name not in sums:
        raise DistError(f"{file.name} is not in {SUMS}, so it is not of this release")
    with _opened(file) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != sums[file.name]:
        raise DistError(f"{file.name} has the sha256 {digest}; {SUMS} has {sums[file.name]}")
    return f"{file.name}, {digest}"
