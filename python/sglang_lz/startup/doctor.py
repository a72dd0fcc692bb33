"""Checks whether an sglang, installed or in a wheel file, is ours, complete and consistent."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import NAME, PACKAGES, Read, Seal, reader
from sglang_lz.startup.wheel import Wheel, metadata_version, record_row


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


def imported_root() -> Path:
    """Return the folder of the ``sglang`` that this Python would import; DistError if none."""
    spec = find_spec(NAME)
    if spec is None or not spec.submodule_search_locations:
        raise DistError(f"{NAME} is not installed in this environment; name a TARGET.")
    return Path(next(iter(spec.submodule_search_locations))).resolve().parent


def find_dist_info(root: Path) -> str | None:
    """Return the name of sglang's .dist-info in ``root``; None in a checkout, which has none."""
    names = sorted(path.name for path in root.glob(f"{NAME}-*.dist-info"))
    if len(names) > 1:
        raise DistError(f"{root} has {' and '.join(names)}; uninstall sglang and install it again.")
    return names[0] if names else None


def examine_installed() -> Iterator[Check]:
    """Check the sglang that this Python would import; DistError if there is not exactly one."""
    root = imported_root()
    dist_info = find_dist_info(root)
    yield Check("sglang", True, f"installed in {root}")
    read = reader(root)
    seal = yield from _common(read, read(f"{dist_info}/METADATA") if dist_info else None)
    if seal:
        yield from _imports(seal, root)


def examine_wheel(file: Path) -> Iterator[Check]:
    """Check the names, metadata and contents of a wheel file, without running any of its code.

    Raises DistError if it is not a wheel.
    """
    with Wheel(file) as wheel:
        yield Check("wheel", True, str(file))
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
    return seal


def _version(seal: Seal, metadata: bytes | None) -> str:
    if metadata is not None and metadata_version(metadata) != seal.version:
        raise DistError(f"METADATA says {metadata_version(metadata)}, the seal {seal.version}")
    if not re.fullmatch(rf"{re.escape(seal.upstream)}\+lz\d+(\.cpu)?", seal.version):
        raise DistError(f"{seal.version} is not a version of ours")
    stock = ", without the LZ penalty (stock)" if "+lz0" in seal.version else ""
    return f"{NAME} {seal.version}{stock}"


def _imports(seal: Seal, root: Path) -> Iterator[Check]:
    """Check that Python would import our copies, and that no installed package overwrites them."""
    for name in (*PACKAGES, "sgl_kernel") if seal.flavour == "cpu" else PACKAGES:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve().parent if spec and spec.origin else None
        ok = origin == root / name
        yield Check(name, ok, f"imported from {origin}{'' if ok else f', not from {root / name}'}")
    # pip would take away our files with those of such a package.
    rivals = {name.replace("_", "-") for name in PACKAGES}
    if seal.flavour == "cpu":
        rivals |= {"sglang-kernel", "sgl-kernel"}
    rivals &= {dist.name.lower().replace("_", "-") for dist in distributions()}
    found = f"{', '.join(sorted(rivals))} is installed over ours; uninstall it, and install ours"
    yield Check("rival packages", not rivals, found if rivals else "none")


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
