"""Patches an installed sglang in place, and reverts it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from .errors import DistError
from .files import first_file, remove_empty, replace_all
from .gitapply import Read, transform, tree_state
from .lock import NAME, Lock
from .overlay import VERSION_FILE, make_overlay, stamp_version
from .patchset import PatchSet
from .seal import SEAL, Seal, reader
from .sources import LOCK, PACKED_PATCHES, release_dir
from .wheelfile import NOTICE, edit_metadata, edit_record, metadata_version


def find_root(target: Path | None) -> Path:
    """Return the folder that holds the ``sglang`` package.

    ``target`` is a site-packages or an upstream checkout; None means the sglang that this Python
    would import (it is located, not imported). Raises DistError if there is none.
    """
    if target is None:
        spec = find_spec(NAME)
        if spec is None or not spec.submodule_search_locations:
            raise DistError(f"{NAME} is not installed in this environment; name a TARGET.")
        return Path(next(iter(spec.submodule_search_locations))).resolve().parent
    for root in (target, target / "python"):
        if (root / NAME / "__init__.py").is_file():
            return root.resolve()
    raise DistError(
        f"{target} is neither a site-packages with {NAME} nor a checkout with python/{NAME}; name "
        "another."
    )


def find_dist_info(root: Path) -> str | None:
    """Return the name of sglang's .dist-info in ``root``; None in a checkout, which has none."""
    names = sorted(path.name for path in root.glob(f"{NAME}-*.dist-info"))
    if len(names) > 1:
        raise DistError(f"{root} has {' and '.join(names)}; uninstall sglang and install it again.")
    return names[0] if names else None


def apply(target: Path | None, lock: Lock, groups: tuple[str, ...]) -> tuple[Path, Seal]:
    """Patch the sglang in ``target`` and put sglang_lz beside it; return its root and seal.

    If there is a .dist-info, METADATA gets our version and RECORD lists our files, so that pip
    shows and uninstalls what is installed; the folder keeps its name. Raises DistError, with
    nothing changed, unless it is the pinned upstream release without modifications.
    """
    root = find_root(target)
    read, dist_info = reader(root), find_dist_info(root)
    if dist_info:
        found = metadata_version(read(f"{dist_info}/METADATA") or b"")
        if found.startswith(f"{lock.version}+lz"):
            raise DistError(f"{root} already has {NAME} {found}, nothing was changed.")
        if found != lock.version:
            raise DistError(
                f"{root} has {NAME} {found}, but the patches are for {lock.version}, nothing was "
                f"changed; install {NAME}=={lock.version} and run again."
            )
    tree_state(PatchSet.load(release_dir()).select(groups), read, lock.version)
    # pip, or a server that outlived `revert`, may leave a folder that contains only caches.
    if found_file := first_file(root / "sglang_lz"):
        undo = "`sglang-lz revert`" if (root / SEAL).exists() else f"move {found_file} away"
        raise DistError(f"{root} already has a sglang_lz, nothing was changed; {undo} first.")
    read_upstream = read if dist_info else _without(read, VERSION_FILE)
    overlay = make_overlay(read_upstream, lock, groups, "cuda", "apply")
    changes: dict[str, bytes | None] = dict(overlay.files)
    if dist_info:
        metadata = read(f"{dist_info}/METADATA") or b""
        changes[f"{dist_info}/METADATA"] = edit_metadata(metadata, overlay.seal.version)
        changes[f"{dist_info}/{NOTICE}"] = overlay.notice
        changes |= _record(read, dist_info, changes)
    replace_all(root, changes)
    return root, overlay.seal


def revert(target: Path | None) -> tuple[Path, Seal]:
    """Undo ``apply`` byte for byte; return the root and the seal that was removed.

    Raises DistError, with nothing changed, if the files were not made by ``apply`` or were changed
    since.
    """
    root = find_root(target)
    read, dist_info = reader(root), find_dist_info(root)
    seal = _seal(root, read)
    ours = root / "sglang_lz" / PACKED_PATCHES / seal.upstream
    lock = Lock.load(ours / LOCK)
    patches = PatchSet.load(ours).select(seal.groups)
    restored = transform(patches, read, seal.upstream, reverse=True)
    if problems := seal.problems(read):
        raise DistError(
            f"{problems[0]}, nothing was changed; undo that, or reinstall {NAME}=={lock.version}."
        )
    if VERSION_FILE in seal.files:
        version_file = read(VERSION_FILE) or b""
        restored[VERSION_FILE] = stamp_version(version_file, seal.version, seal.upstream)
    changes: dict[str, bytes | None] = {path: restored.get(path) for path in seal.files}
    changes[SEAL] = None
    if dist_info:
        metadata = read(f"{dist_info}/METADATA") or b""
        changes[f"{dist_info}/METADATA"] = edit_metadata(metadata, seal.upstream)
        changes[f"{dist_info}/{NOTICE}"] = None
        changes |= _record(read, dist_info, changes)
    replace_all(root, changes)
    remove_empty(root / "sglang_lz")
    return root, seal


def _seal(root: Path, read: Read) -> Seal:
    data = read(SEAL)
    if data is None:
        raise DistError(f"{root} has no {SEAL}: `sglang-lz apply` patched nothing here.")
    try:
        seal = Seal.parse(data)
    except ValueError as error:
        raise DistError(f"{root / SEAL} cannot be read ({error}); install {NAME} anew.") from None
    if seal.made_by != "apply":
        raise DistError(
            f"{root} was installed from a wheel of {seal.version}, which was never unpatched; "
            f"install {NAME}=={seal.upstream} with pip instead."
        )
    return seal


def _record(read: Read, dist_info: str, changes: dict[str, bytes | None]) -> dict[str, bytes]:
    name = f"{dist_info}/RECORD"
    record = read(name)
    return {} if record is None else {name: edit_record(record, changes)}


def _without(read: Read, hidden: str) -> Read:
    return lambda path: None if path == hidden else read(path)
