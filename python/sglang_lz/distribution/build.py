"""Building the patched wheel."""

from __future__ import annotations

from pathlib import Path

from .fetch import Say
from .lock import NAME, Lock, WheelPin
from .overlay import cpu_requirements, make_overlay
from .wheelfile import NOTICE, Wheel, edit_entry_points, edit_metadata, write_wheel


def build(
    lock: Lock,
    pin: WheelPin,
    wheel: Path,
    *,
    groups: tuple[str, ...],
    flavour: str,
    out: Path,
    say: Say,
) -> Path:
    """Build our wheel from upstream's ``wheel``, which is the one of ``pin``, and return it.

    Raises DistError if anything does not match; ``out`` is then unchanged.
    """
    with Wheel(wheel) as upstream:
        say(f"applying the patches of {', '.join(groups) or 'no group'} to {wheel.name}")
        overlay = make_overlay(upstream.read, lock, groups, flavour, "build")
        version = overlay.seal.version
        dist_info = f"{NAME}-{version}.dist-info"

        def info(name: str) -> bytes:
            return upstream.read(f"{upstream.dist_info}/{name}") or b""

        ours = "sglang_lz\nsgl_kernel\n" if flavour == "cpu" else "sglang_lz\n"
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
