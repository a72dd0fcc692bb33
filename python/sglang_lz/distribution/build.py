"""Building the patched wheel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .fetch import fetch, verify
from .lock import NAME, Lock, WheelPin
from .overlay import cpu_requirements, make_overlay
from .wheelfile import NOTICE, Wheel, edit_entry_points, edit_metadata, write_wheel


def build(
    *,
    lock: Lock,
    pin: WheelPin,
    wheel: Path | None,
    groups: tuple[str, ...],
    flavour: str,
    out: Path,
    cache: Path,
    say: Callable[[str], None],
) -> Path:
    """Build our wheel from the pinned one (``wheel``, or fetched into ``cache``) and return it.

    Raises DistError if anything does not match; ``out`` is then unchanged.
    """
    say(f"[1/4] upstream's wheel: {NAME} {lock.version}, {pin.python}, {pin.arch}")
    if wheel:
        verify(wheel, pin)
    else:
        wheel = fetch(lock, pin, cache, say)
    with Wheel(wheel) as upstream:
        say(f"[2/4] applying the patches of {', '.join(groups) or 'no group'}")
        overlay = make_overlay(upstream.read, lock, groups, flavour, "build")
        version = overlay.seal.version
        say(f"[3/4] version {version}, {len(overlay.seal.files)} files sealed")
        dist_info = f"{NAME}-{version}.dist-info"

        def info(name: str) -> bytes:
            return upstream.read(f"{upstream.dist_info}/{name}") or b""

        packages = ["sglang_lz", *(["sgl_kernel"] if flavour == "cpu" else [])]
        requires = cpu_requirements() if flavour == "cpu" else None
        changes = {
            **overlay.files,
            f"{dist_info}/METADATA": edit_metadata(info("METADATA"), version, requires, True),
            f"{dist_info}/entry_points.txt": edit_entry_points(info("entry_points.txt")),
            f"{dist_info}/top_level.txt": info("top_level.txt")
            + "\n".join([*packages, ""]).encode(),
            f"{dist_info}/{NOTICE}": overlay.notice,
        }
        result = out / pin.filename.replace(f"{NAME}-{lock.version}-", f"{NAME}-{version}-", 1)
        say(f"[4/4] writing {result}")
        write_wheel(result, upstream, dist_info, changes, say)
    return result
