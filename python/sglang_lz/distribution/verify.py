"""Whether a file is of a signed release: `verify`. scripts/release makes what it reads.

What vouches for what: the signature for SHA256SUMS, and that for every other file by its sha256.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .doctor import Check, checked, examine_wheel
from .errors import DistError

SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.minisig"
PROVENANCE = "provenance.json"
SBOM = ".cdx.json"
"""What the name of a file's SBOM has behind the file's own."""


def examine_files(files: Iterable[Path], public_key: str) -> Iterator[Check]:
    """Check files that lie in release folders; a wheel also by its SBOM, provenance and contents.

    Args:
        files: SHA256SUMS and its signature may be among them; they are checked anyway.
        public_key: of minisign, its text or the path of a file.

    Raises:
        DistError: a file, the signature or the library is missing, or the key is none.
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
        if sums is not None and file.name not in (SUMS, SIGNATURE):
            yield from _examine(file, sums)


def _public_key(text: str) -> Any:
    try:
        import minisign  # not of the standard library; nothing else needs it
    except ImportError:
        raise DistError(
            "verify needs py-minisign: `pip install py-minisign`. docs/SECURITY.md says how to "
            "check a release without it."
        ) from None
    try:
        if Path(text).is_file():
            return minisign.PublicKey.from_file(text)
        return minisign.PublicKey.from_base64(text)
    except ValueError as error:
        raise DistError(
            f"--public-key {text} is no file and no text of a minisign public key ({error})."
        ) from None


def _sums(folder: Path, key: Any) -> tuple[Check, Mapping[str, str] | None]:
    """Check the signature; return what SHA256SUMS lists, None if nothing vouches for it."""
    import minisign

    data, signature = (_read(folder / name) for name in (SUMS, SIGNATURE))
    try:
        signed = minisign.Signature.from_bytes(signature)
        key.verify(data, signed)
    except ValueError as error:
        found = f"{folder / SIGNATURE} does not sign {SUMS} with this key ({error})"
        return Check("signature", False, found), None
    lines = re.findall(r"^([0-9a-f]{64})  (.+)$", data.decode("utf-8", "replace"), re.M)
    sums = {name: digest for digest, name in lines}
    return Check("signature", True, f"{folder / SUMS}, signed: {signed.trusted_comment}"), sums


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DistError(
            f"{file} cannot be read ({error.strerror}); a release has it beside its files."
        ) from None


def _examine(file: Path, sums: Mapping[str, str]) -> Iterator[Check]:
    digest = checked("sha256", lambda: f"{file.name}, {_listed(file, sums)[0]}")
    yield digest
    if not digest.ok or file.suffix != ".whl":
        return
    yield checked("SBOM", lambda: _sbom(file, sums))
    yield checked("provenance", lambda: _provenance(file, sums))
    yield from examine_wheel(file)


def _listed(file: Path, sums: Mapping[str, str]) -> tuple[str, bytes]:
    """Return a file's sha256 and bytes; DistError if they are not those that SHA256SUMS lists."""
    if file.name not in sums:
        raise DistError(f"{file.name} is not in {SUMS}, so it is not of this release")
    data = _read(file)
    digest = hashlib.sha256(data).hexdigest()
    if digest != sums[file.name]:
        raise DistError(f"{file.name} has the sha256 {digest}; {SUMS} has {sums[file.name]}")
    return digest, data


def _json(file: Path, sums: Mapping[str, str]) -> Any:
    try:
        return json.loads(_listed(file, sums)[1])
    except ValueError as error:
        raise DistError(f"{file.name} is not JSON ({error})") from None


def _sbom(file: Path, sums: Mapping[str, str]) -> str:
    sbom = file.with_name(file.name + SBOM)
    try:
        component = _json(sbom, sums)["metadata"]["component"]
        hashes = [entry["content"] for entry in component["hashes"] if entry["alg"] == "SHA-256"]
    except (KeyError, TypeError) as error:
        raise DistError(f"{sbom.name} describes no file with a sha256 ({error})") from None
    if hashes != [sums[file.name]]:
        raise DistError(f"{sbom.name} describes another file than {file.name}")
    return f"{sbom.name} describes {component['name']} {component.get('version')}, this file"


def _provenance(file: Path, sums: Mapping[str, str]) -> str:
    provenance = file.with_name(PROVENANCE)
    try:
        statement = _json(provenance, sums)
        named = {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]}
        builder = statement["predicate"]["runDetails"]["builder"]["id"]
    except (KeyError, TypeError) as error:
        raise DistError(f"{PROVENANCE} does not say what was made ({error})") from None
    if named.get(file.name) != sums[file.name]:
        raise DistError(f"{PROVENANCE} does not name {file.name} with this sha256")
    return f"{PROVENANCE} names this file, made by {builder}"
