"""The SBOMs of a release in CycloneDX format: the components of a wheel or an image.

They do not depend on when or where they were made: the serial number is derived from the content,
and the time is the commit's.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from datetime import datetime
from email import message_from_bytes
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model import component as model
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from _environment import SetupError
from patches_tool.overlay import PACKED_PATCHES
from patches_tool.upstream import Lock, WheelPin
from patches_tool.wheelfile import Wheel
from sglang_lz.startup.seal import NAME, Seal

IMAGES = {"cpu": ("torch.lock", "cpu.lock"), "router": ("router.lock",)}
"""The images whose packages are all locked, and their lock files in docker/."""
BASE = re.compile(r"^ARG BASE_IMAGE=(\S+)@sha256:([0-9a-f]{64})$", re.M)
LOCKED = re.compile(r"([\w.-]+)==([\w.+!-]+)(?=[ \\]|$)")


def of_wheel(wheel: Path, lock: Lock, pin: WheelPin, time: datetime) -> str:
    """Return the SBOM of a wheel that was built from the pin of a lock, at the commit's time."""
    with Wheel(wheel) as opened:
        seal = Seal.read(opened.read)
        metadata = opened.read(f"{opened.dist_info}/METADATA") or b""
    upstream = _package(NAME, lock.version, pin.filename, pin.sha256)
    component = _ours(wheel)
    packed = (path for path in seal.files if path.startswith(f"sglang_lz/{PACKED_PATCHES}/"))
    patches = [path for path in packed if path.endswith(tuple(seal.patches))]
    component.components = [_file(path, seal.files[path]) for path in patches]
    kind, diffs = model.PatchClassification.UNOFFICIAL, (model.Diff(url=XsUri(p)) for p in patches)
    changes = [model.Patch(type=kind, diff=diff) for diff in diffs]
    component.pedigree = model.Pedigree(ancestors=[upstream], patches=changes)
    lines = message_from_bytes(metadata).get_all("Requires-Dist", [])
    # Some of upstream's extras require other extras of the same package, which is this wheel.
    required = [part for line in dict.fromkeys(lines) if (part := _required(line)).name != NAME]
    return _text(component, required, time)


def of_image(which: str, version: str, source: Path, wheels: list[Path], time: datetime) -> str:
    """Return the SBOM of an image: its base, the packages in its lock files, and our wheel.

    ``source`` is the checkout, and ``wheels`` has the image's wheel if this release includes it.
    """
    found = BASE.search((source / "docker" / f"{which}.Dockerfile").read_text())
    if not found:
        raise SetupError(f"docker/{which}.Dockerfile does not pin its BASE_IMAGE by sha256.")
    base, digest = found.groups()
    container = ComponentType.CONTAINER
    parts = [Component(type=container, name=base, bom_ref=base, hashes=[_sha256(digest)])]
    for name in IMAGES[which]:
        data = (source / "docker" / name).read_bytes()
        parts += [_file(f"docker/{name}", hashlib.sha256(data).hexdigest())]
        parts += _locked(f"docker/{name}", data.decode())
    parts += map(_ours, wheels)
    name = f"sglang-lz-{which}"
    component = Component(type=container, name=name, version=version, bom_ref=f"{name} {version}")
    return _text(component, parts, time)


def _text(component: Component, parts: Iterable[Component], time: datetime) -> str:
    bom = Bom(metadata=BomMetaData(component=component, timestamp=time), components=parts)
    bom.register_dependency(component, bom.components)
    # The library would choose a random one. Ours depends only on the content.
    bom.serial_number = uuid.UUID(int=0)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, hashlib.sha256(text.encode()).hexdigest())
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _ours(wheel: Path) -> Component:
    version = wheel.name.split("-")[1]
    return _package(NAME, version, wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest())


def _package(name: str, version: str, file: str, sha256: str) -> Component:
    return Component(
        name=name,
        version=version,
        bom_ref=file,
        purl=PackageURL("pypi", None, name, version, {"file_name": file}),
        hashes=[_sha256(sha256)],
    )


def _file(path: str, sha256: str) -> Component:
    return Component(type=ComponentType.FILE, name=path, bom_ref=path, hashes=[_sha256(sha256)])


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _required(line: str) -> Component:
    """Return a requirement as a component, with a version only if exactly one is allowed."""
    requirement = Requirement(line)
    exact = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
    name = canonicalize_name(requirement.name)
    return Component(
        name=name,
        version=exact[1] if exact else None,
        bom_ref=line,
        purl=PackageURL("pypi", None, name, exact[1] if exact else None),
        scope=ComponentScope.OPTIONAL if "extra" in str(requirement.marker) else None,
        properties=[Property(name="Requires-Dist", value=line)],
    )


def _locked(path: str, text: str) -> list[Component]:
    components = []
    for line in text.splitlines():
        if not line or line[0] in "# ":
            continue
        if not (found := LOCKED.match(line)):
            raise SetupError(f"{path}: {line!r} does not lock a package.")
        name, version = found.groups()
        purl = PackageURL("pypi", None, name, version)
        components.append(Component(name=name, version=version, bom_ref=str(purl), purl=purl))
    return components
