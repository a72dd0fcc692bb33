"""Patches an installed sglang in place, and reverts it."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path

from patches_tool.files import first_file, remove_empty, replace_all
from patches_tool.gitapply import transform
from patches_tool.overlay import PACKED_PATCHES, VERSION_FILE, make_overlay, stamp_version
from patches_tool.patchset import PatchSet
from patches_tool.upstream import Lock
from patches_tool.wheelfile import NOTICE, edit_metadata, edit_record
from sglang_lz.startup.doctor import find_dist_info, imported_root
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import NAME, PACKAGES, SEAL, Read, Seal, reader


def find_root(target: Path | None) -> Path:
    """Return the folder that holds the ``sglang`` package; DistError if there is none.

    ``target`` is a site-packages or an upstream checkout; None means what this Python would import.
    """
    if target is None:
        return imported_root()
    for root in (target, target / "python"):
        if (root / NAME / "__init__.py").is_file():
            return root.resolve()
    raise DistError(f"{target} is no site-packages or checkout with {NAME}; name another.")


def apply(target: Path | None, lock: Lock, groups: tuple[str, ...]) -> tuple[Path, Seal]:
    """Patch the sglang in ``target`` and put our packages beside it; return its root and seal.

    In a .dist-info, METADATA gets our version and RECORD lists our files, for pip. Raises
    DistError, with nothing changed, unless it is the unmodified pinned release of upstream.
    """
    root = find_root(target)
    read, dist_info = reader(root), find_dist_info(root)
    # pip, or a server that outlived `revert`, may leave a folder that contains only caches.
    for name in PACKAGES:
        if found := first_file(root / name):
            undo = "`scripts/patches revert`" if (root / SEAL).exists() else f"move {found} away"
            raise DistError(f"{root} already has a {name}, nothing was changed; {undo} first.")
    if dist_info:
        version = Distribution.at(root / dist_info).version
        if version != lock.version:
            raise DistError(
                f"{root} has {NAME} {version}, but the patches are for {lock.version}, nothing was "
                f"changed; install {NAME}=={lock.version} and run again."
            )
    # A checkout may have a generated version module, which is not upstream's file.
    overlay = make_overlay(
        lambda path: read(path) if dist_info or path != VERSION_FILE else None,
        *(lock, groups, "cuda", "apply"),
    )
    changes: dict[str, bytes | None] = dict(overlay.files)
    if dist_info:
        _edit_dist_info(changes, read, dist_info, overlay.seal.version, overlay.notice)
    replace_all(root, changes)
    return root, overlay.seal


def revert(target: Path | None) -> tuple[Path, Seal]:
    """Undo ``apply`` byte for byte; return the root and the seal that was removed.

    Raises DistError, with nothing changed, if ``apply`` did not make the files as they are.
    """
    root = find_root(target)
    read, dist_info = reader(root), find_dist_info(root)
    if read(SEAL) is None:
        raise DistError(f"{root} has no {SEAL}: `scripts/patches apply` patched nothing here.")
    seal = Seal.read(read)
    if seal.made_by != "apply":
        raise DistError(
            f"{root} was installed from a wheel of {seal.version}, which was never unpatched; "
            f"install {NAME}=={seal.upstream} with pip instead."
        )
    ours = root / "sglang_lz" / PACKED_PATCHES / seal.upstream
    patches = PatchSet.load(ours).select(seal.groups)
    restored = transform(patches, read, seal.upstream, reverse=True)
    if problems := seal.problems(read):
        raise DistError(
            f"{problems[0]}, nothing was changed; undo that, or reinstall {NAME}=={seal.upstream}."
        )
    if VERSION_FILE in seal.files:
        version_file = read(VERSION_FILE) or b""
        restored[VERSION_FILE] = stamp_version(version_file, seal.version, seal.upstream)
    changes: dict[str, bytes | None] = {path: restored.get(path) for path in seal.files}
    changes[SEAL] = None
    if dist_info:
        _edit_dist_info(changes, read, dist_info, seal.upstream, None)
    replace_all(root, changes)
    for name in PACKAGES:
        remove_empty(root / name)
    return root, seal


def _edit_dist_info(
    changes: dict[str, bytes | None], read: Read, dist_info: str, version: str, notice: bytes | None
) -> None:
    """Add the changes of the .dist-info: METADATA, our notice and RECORD."""
    metadata = read(f"{dist_info}/METADATA") or b""
    changes[f"{dist_info}/METADATA"] = edit_metadata(metadata, version)
    changes[f"{dist_info}/{NOTICE}"] = notice
    if (record := read(f"{dist_info}/RECORD")) is not None:
        changes[f"{dist_info}/RECORD"] = edit_record(record, changes)
