"""Checks whether an sglang, installed or in a wheel file, is ours, complete and consistent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from .errors import DistError
from .gitapply import Read, blob_id
from .inplace import find_dist_info, find_root
from .lock import NAME
from .overlay import package_version
from .patchset import LZ_GROUPS, Patch, PatchSet, parse_series
from .seal import SEAL, Seal, reader
from .sources import LOCK, PACKED_PATCHES
from .wheelfile import Wheel, metadata_version, record_row


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


def examine_installed(target: Path | None = None) -> list[Check]:
    """Check the sglang that this Python would import, or the one in ``target``."""
    try:
        root = find_root(target)
        dist_info = find_dist_info(root)
    except DistError as error:
        return [Check("sglang", False, str(error))]
    read = reader(root)
    checks = [Check("sglang", True, f"installed in {root}")]
    metadata = read(f"{dist_info}/METADATA") if dist_info else None
    seal = _seal(checks, read)
    if seal:
        checks += _common(seal, read, metadata)
        if target is None:
            checks += _imports(seal, root)
    return checks


def examine_wheel(file: Path) -> list[Check]:
    """Check the names, metadata and contents of a wheel file, without running any of its code."""
    try:
        with Wheel(file) as wheel:
            checks = [Check("wheel", True, str(file))]
            seal = _seal(checks, wheel.read)
            checks.append(_record(wheel))
            if seal:
                metadata = wheel.read(f"{wheel.dist_info}/METADATA") or b""
                checks += _common(seal, wheel.read, metadata)
                checks.append(_names(wheel, seal))
            return checks
    except DistError as error:
        return [Check("wheel", False, str(error))]


def _seal(checks: list[Check], read: Read) -> Seal | None:
    data = read(SEAL)
    if data is None:
        checks.append(
            Check("seal", False, f"{SEAL} is missing: this is a stock sglang; install our wheel")
        )
        return None
    try:
        seal = Seal.parse(data)
    except ValueError as error:
        checks.append(
            Check("seal", False, f"{SEAL} cannot be read ({error}); install our wheel anew")
        )
        return None
    checks.append(Check("seal", True, f"{seal.version}, {seal.flavour} flavour, {seal.made_by}"))
    return seal


def _common(seal: Seal, read: Read, metadata: bytes | None) -> Iterator[Check]:
    yield checked("version", lambda: _version(seal, read, metadata))
    problems = seal.problems(read)
    found = "; ".join(problems[:3]) or f"all {len(seal.files)} sealed files are as they were sealed"
    yield Check("files", not problems, found + (" …" if len(problems) > 3 else ""))
    version = package_version(read("sglang_lz/__init__.py"))
    yield Check("package", version == seal.package, f"sglang_lz {version}, sealed {seal.package}")
    yield checked("patches", lambda: _patches(seal, read))


def _version(seal: Seal, read: Read, metadata: bytes | None) -> str:
    if metadata is not None and metadata_version(metadata) != seal.version:
        raise DistError(f"METADATA says {metadata_version(metadata)}, the seal {seal.version}")
    if not re.fullmatch(rf"{re.escape(seal.upstream)}\+lz\d+(\.cpu)?", seal.version):
        raise DistError(f"{seal.version} is not a version of ours")
    where = "" if metadata is not None else " (a checkout: no metadata to compare)"
    stock = "" if set(LZ_GROUPS) <= set(seal.groups) else ", without the LZ penalty (stock)"
    return f"{NAME} {seal.version}{stock}{where}"


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
    ours = ["sglang_lz", *(["sgl_kernel"] if seal.flavour == "cpu" else [])]
    for name in ours:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parent != root / name:
            yield Check(name, False, f"Python imports it from {origin}, not from {root / name}")
        else:
            yield Check(name, True, f"imported from {root / name}")
    if seal.flavour == "cpu":
        rivals = [
            dist.name
            for dist in distributions()
            if dist.name.lower().replace("_", "-") in ("sglang-kernel", "sgl-kernel")
        ]
        found = f"{rivals[0]} is installed over our stand-in; uninstall it" if rivals else "none"
        yield Check("rival kernel packages", not rivals, found)


def _record(wheel: Wheel) -> Check:
    """Check that RECORD lists exactly the wheel's files, with their hashes."""
    name = f"{wheel.dist_info}/RECORD"
    rows = set((wheel.read(name) or b"").decode("utf-8").splitlines())
    expected = {record_row(n, wheel.read(n) or b"") for n in wheel.names if n != name}
    wrong = sorted(rows ^ (expected | {f"{name},,"}))
    found = (
        f"{wrong[0].split(',sha256=')[0]} does not match" if wrong else f"{len(rows)} files match"
    )
    return Check("RECORD", not wrong, found)


def _names(wheel: Wheel, seal: Seal) -> Check:
    """Check the version in the file name, the tag, and the name of the .dist-info."""
    tags = re.findall(
        r"^Tag: (\S+)", (wheel.read(f"{wheel.dist_info}/WHEEL") or b"").decode(), re.M
    )
    names = [f"{NAME}-{seal.version}-{tag}.whl" for tag in tags]
    ok = wheel.path.name in names and wheel.dist_info == f"{NAME}-{seal.version}.dist-info"
    found = f"{wheel.path.name}" if ok else f"{wheel.path.name}, should be {' or '.join(names)}"
    return Check("file name", ok, found)
