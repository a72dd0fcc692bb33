"""Checks whether an sglang, installed or in a wheel file, is ours, complete and consistent."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from sglang_lz.distribution.errors import DistError
from sglang_lz.distribution.gitapply import Read, blob_id
from sglang_lz.distribution.inplace import find_dist_info, find_root
from sglang_lz.distribution.lock import NAME
from sglang_lz.distribution.overlay import package_version
from sglang_lz.distribution.patchset import LZ_GROUPS, Patch, PatchSet, parse_series
from sglang_lz.distribution.seal import Seal, reader
from sglang_lz.distribution.sources import LOCK, PACKAGES, PACKED_PATCHES
from sglang_lz.distribution.wheelfile import Wheel, metadata_version, record_row


@dataclass(frozen=True)
class Check:
    """One line of the report: what was checked, whether it passed, and what was found."""

    name: str
    ok: bool
    found: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'}  {self.name}: {self.found}"


def checked(name: str, find: Callable[[], str]) -> Check:
    """Run a check that returns what it found or raises DistError."""
    try:
        return Check(name, True, find())
    except DistError as error:
        return Check(name, False, str(error))


def examine_installed() -> Iterator[Check]:
    """Check the sglang that this Python would import."""
    try:
        root = find_root(None)
        dist_info = find_dist_info(root)
    except DistError as error:
        yield Check("sglang", False, str(error))
        return
    yield Check("sglang", True, f"installed in {root}")
    read = reader(root)
    seal = yield from _common(read, read(f"{dist_info}/METADATA") if dist_info else None)
    if seal:
        yield from _imports(seal, root)


def examine_wheel(file: Path) -> Iterator[Check]:
    """Check the names, metadata and contents of a wheel file, without running any of its code."""
    try:
        wheel = Wheel(file)
    except DistError as error:
        yield Check("wheel", False, str(error))
        return
    yield Check("wheel", True, str(file))
    with wheel:
        seal = yield from _common(wheel.read, wheel.read(f"{wheel.dist_info}/METADATA") or b"")
        yield checked("RECORD", lambda: _record(wheel))
        if seal:
            yield checked("file name", lambda: _names(wheel, seal))


def _common(read: Read, metadata: bytes | None) -> Generator[Check, None, Seal | None]:
    try:
        seal = Seal.read(read)
    except DistError as error:
        yield Check("seal", False, str(error))
        return None
    yield Check("seal", True, f"{seal.version}, {seal.flavour} flavour, {seal.made_by}")
    yield checked("version", lambda: _version(seal, metadata))
    problems = seal.problems(read)
    found = "; ".join(problems[:3]) or f"all {len(seal.files)} sealed files are as they were sealed"
    yield Check("files", not problems, found + (" …" if len(problems) > 3 else ""))
    version = package_version(read("sglang_lz/__init__.py"))
    yield Check("package", version == seal.package, f"sglang_lz {version}, sealed {seal.package}")
    yield checked("patches", lambda: _patches(seal, read))
    return seal


def _version(seal: Seal, metadata: bytes | None) -> str:
    if metadata is not None and metadata_version(metadata) != seal.version:
        raise DistError(f"METADATA says {metadata_version(metadata)}, the seal {seal.version}")
    if not re.fullmatch(rf"{re.escape(seal.upstream)}\+lz\d+(\.cpu)?", seal.version):
        raise DistError(f"{seal.version} is not a version of ours")
    stock = "" if set(LZ_GROUPS) <= set(seal.groups) else ", without the LZ penalty (stock)"
    return f"{NAME} {seal.version}{stock}"


def _patches(seal: Seal, read: Read) -> str:
    """Compare the included patches with the seal's list and with the patched files."""
    folder = f"sglang_lz/{PACKED_PATCHES}/{seal.upstream}"
    texts = {name: read(f"{folder}/{name}") for name in ("series", LOCK, *seal.patches)}
    if missing := [name for name, data in texts.items() if data is None]:
        raise DistError(f"{folder}/{missing[0]} is missing")
    series = parse_series(texts["series"] or b"", f"{folder}/series")
    applied = tuple(name for name in series if name.split("/")[0] in seal.groups)
    if applied != seal.patches:
        raise DistError("the series in the package is not the list of patches in the seal")
    patches = PatchSet(tuple(Patch(name, texts[name] or b"") for name in applied))
    for path, (_, after) in patches.blobs.items():
        if (data := read(path)) is None or blob_id(data) != after:
            raise DistError(f"{path} is not what the patches make of it")
    return f"{len(applied)} patches, {len(patches.blobs)} patched files, as the seal lists them"


def _imports(seal: Seal, root: Path) -> Iterator[Check]:
    """Check that Python would import our copies, and that no installed package overwrites them."""
    for name in (*PACKAGES, "sgl_kernel") if seal.flavour == "cpu" else PACKAGES:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve().parent if spec and spec.origin else None
        ok = origin == root / name
        yield Check(name, ok, f"imported from {origin}{'' if ok else f', not from {root / name}'}")
    if seal.flavour == "cpu":
        names = {dist.name.lower().replace("_", "-") for dist in distributions()}
        rivals = names & {"sglang-kernel", "sgl-kernel"}
        found = f"{', '.join(rivals)} is installed over our stand-in; uninstall it"
        yield Check("rival kernel packages", not rivals, found if rivals else "none")


def _record(wheel: Wheel) -> str:
    """Check that RECORD lists exactly the wheel's files, with their hashes."""
    name = f"{wheel.dist_info}/RECORD"
    rows = set((wheel.read(name) or b"").decode("utf-8").splitlines())
    expected = {record_row(n, wheel.read(n) or b"") for n in wheel.names if n != name}
    if wrong := sorted(rows ^ (expected | {f"{name},,"})):
        raise DistError(f"{wrong[0].split(',sha256=')[0]} does not match")
    return f"{len(rows)} files match"


def _names(wheel: Wheel, seal: Seal) -> str:
    """Check the version in the file name, the tag, and the name of the .dist-info."""
    metadata = (wheel.read(f"{wheel.dist_info}/WHEEL") or b"").decode()
    tags = re.findall(r"^Tag: (\S+)", metadata, re.M)
    names = [f"{NAME}-{seal.version}-{tag}.whl" for tag in tags]
    if wheel.path.name not in names or wheel.dist_info != f"{NAME}-{seal.version}.dist-info":
        raise DistError(f"{wheel.path.name}, should be {' or '.join(names)}")
    return wheel.path.name
