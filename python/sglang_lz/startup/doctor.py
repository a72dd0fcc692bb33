"""Checks whether the installed sglang is ours, complete and consistent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import NAME, PACKAGES, Seal, reader


@dataclass(frozen=True)
class Check:
    """One line of the report: what was checked, whether it passed, and what was found."""

    name: str
    ok: bool
    found: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'}  {self.name}: {self.found}"


def imported_root() -> Path:
    """Return the folder of the ``sglang`` that this Python would import; DistError if none."""
    spec = find_spec(NAME)
    if spec is None or not spec.submodule_search_locations:
        raise DistError(f"{NAME} is not installed in this environment; install our wheel.")
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
    try:
        seal = Seal.read(read)
    except DistError as error:
        yield Check("seal", False, str(error))
        return
    yield Check("seal", True, f"{seal.version}, {seal.flavour} flavour, {seal.made_by}")
    installed = Distribution.at(root / dist_info).version if dist_info else seal.version
    stock = ", without the LZ penalty (stock)" if "+lz0" in seal.version else ""
    found = f"{NAME} {seal.version}{stock}"
    if installed != seal.version:
        found = f"METADATA says {installed or 'nothing'}, the seal {seal.version}"
    yield Check("version", installed == seal.version, found)
    problems = seal.problems(read)
    found = "; ".join(problems[:3]) or f"all {len(seal.files)} sealed files are as they were sealed"
    yield Check("files", not problems, found + (" …" if len(problems) > 3 else ""))
    yield from _imports(seal, root)


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
