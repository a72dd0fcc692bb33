"""The overlay on upstream's files (the patched files, our packages, the seal), and our wheel.

A built wheel and an sglang that is patched in place have the same overlay and differ only in their
metadata.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from _checkout import ROOT
from patches_tool.gitapply import transform
from patches_tool.patchset import LZ_GROUPS, PatchSet
from patches_tool.upstream import LOCK, PATCHES, Lock, WheelPin
from patches_tool.wheelfile import NOTICE, Wheel, edit_entry_points, edit_metadata, write_wheel
from sglang_lz.startup.command_line import say
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import NAME, PACKAGES, SEAL, Read, Seal

PYTHON = ROOT / "python"
CPU = PYTHON / "sglang_lz" / "cpu"
PACKED_PATCHES = "_patches"
"""Where a patched sglang_lz carries what a checkout keeps in patches/."""
VERSION_FILE = "sglang/_version.py"
"""Upstream's generated version module; it is in its wheels, not in its repository."""
NOT_FOR_CUDA = ("sglang_lz/cpu/", "sglang_lz/demo/reasoner/")
"""The folders that the CUDA flavour omits, as nothing in it uses them."""


@dataclass(frozen=True)
class Overlay:
    """The files to put over upstream's, by paths below the root; they include the seal."""

    files: dict[str, bytes]
    seal: Seal
    notice: bytes


def build(
    lock: Lock, pin: WheelPin, wheel: Path, *, groups: tuple[str, ...], flavour: str, out: Path
) -> Path:
    """Build our wheel from upstream's ``wheel``; on DistError, ``out`` is unchanged."""
    with Wheel(wheel) as upstream:
        say(f"applying the patches of {', '.join(groups)} to {wheel.name}")
        overlay = make_overlay(upstream.read, lock, groups, flavour, "build")
        version = overlay.seal.version
        dist_info = f"{NAME}-{version}.dist-info"

        def info(name: str) -> bytes:
            return upstream.read(f"{upstream.dist_info}/{name}") or b""

        ours = "\n".join((*PACKAGES, *(["sgl_kernel"] if flavour == "cpu" else []), ""))
        requires = cpu_requirements() if flavour == "cpu" else None
        changes = {
            **overlay.files,
            f"{dist_info}/METADATA": edit_metadata(info("METADATA"), version, requires, True),
            f"{dist_info}/entry_points.txt": edit_entry_points(info("entry_points.txt")),
            f"{dist_info}/top_level.txt": info("top_level.txt") + ours.encode(),
            f"{dist_info}/{NOTICE}": overlay.notice,
        }
        result = out / pin.filename.replace(f"{NAME}-{lock.version}-", f"{NAME}-{version}-", 1)
        say(f"writing {result}, with {len(overlay.seal.files)} sealed files")
        write_wheel(result, upstream, dist_info, changes)
    return result


def make_overlay(
    read: Read,
    lock: Lock,
    groups: tuple[str, ...],
    flavour: str,
    made_by: Literal["build", "apply"],
) -> Overlay:
    """Return the overlay for upstream's files; DistError if they do not match the lock."""
    root = PATCHES / lock.version
    all_patches = PatchSet.load(root)
    patches = all_patches.select(groups)
    files = transform(patches, read, lock.version)
    revision = lock.revision if set(LZ_GROUPS) <= set(groups) else 0
    version = lock.local_version(revision, flavour)
    notice = _notice([*sorted(files), VERSION_FILE], lock.version, version)
    if stamp := read(VERSION_FILE):
        files[VERSION_FILE] = stamp_version(stamp, lock.version, version)
    files |= package_files(flavour, groups)
    for path in ("series", LOCK, *(patch.name for patch in all_patches.patches)):
        files[f"sglang_lz/{PACKED_PATCHES}/{lock.version}/{path}"] = (root / path).read_bytes()
    if flavour == "cpu":
        kernel = _folder(CPU / "sgl_kernel")
        files |= {f"sgl_kernel/{path}": data for path, data in kernel.items()}
    seal = Seal(
        version=version,
        upstream=lock.version,
        flavour=flavour,
        made_by=made_by,
        groups=groups,
        patches=tuple(patch.name for patch in patches.patches),
        files={path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)},
    )
    files[SEAL] = seal.dump()
    return Overlay(files, seal, notice)


def package_files(flavour: str, groups: tuple[str, ...]) -> dict[str, bytes]:
    """Return the files of our packages that belong to a flavour, by paths below site-packages."""
    left_out = NOT_FOR_CUDA if flavour == "cuda" and "cpu" not in groups else ()
    return {
        f"{name}/{path}": data
        for name in PACKAGES
        for path, data in _folder(PYTHON / name).items()
        # What installs a library by itself is not part of our wheel.
        if path not in {"pyproject.toml", "README.md"} and not f"{name}/{path}".startswith(left_out)
    }


def cpu_requirements() -> list[str]:
    """Return the requirements of the CPU flavour, one Requires-Dist value each."""
    lines = (CPU / "requirements.txt").read_text("utf-8").splitlines()
    return [text for line in lines if (text := re.sub(r"(^|\s)#.*", "", line).strip())]


def stamp_version(data: bytes, old: str, new: str) -> bytes:
    """Return upstream's version module with a new version; DistError if it lacks the old one."""
    for before, after in zip(_literals(old), _literals(new), strict=True):
        if data.count(before) != 1:
            raise DistError(f"{VERSION_FILE} is not that of {NAME} {old}; {before!r} is not in it.")
        data = data.replace(before, after)
    return data


def _literals(version: str) -> tuple[bytes, bytes]:
    public, plus, local = version.partition("+")
    parts = [repr(int(part)) if part.isdigit() else repr(part) for part in public.split(".")]
    numbers = ", ".join(parts + ([repr(local)] if plus else []))
    return f"= '{version}'\n".encode(), f"= ({numbers})\n".encode()


def _folder(root: Path) -> dict[str, bytes]:
    """Return the files below ``root``, without hidden ones and caches."""
    paths = {file.relative_to(root).as_posix(): file for file in sorted(root.rglob("*"))}
    hidden = re.compile(r"(^|/)(\.|__pycache__/|dist/)")
    return {p: f.read_bytes() for p, f in paths.items() if f.is_file() and not hidden.search(p)}


def _notice(paths: list[str], upstream: str, version: str) -> bytes:
    return f"""\
{NAME} {version} is SGLang {upstream}, changed by the sglang-lz project.

SGLang is licensed under the Apache License 2.0, see LICENSE beside this file. As its section 4(b)
asks: these files were changed. sglang_lz/{PACKED_PATCHES} holds every change as a patch.

{"".join(f"    {path}" + chr(10) for path in paths)}""".encode()
