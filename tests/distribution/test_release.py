"""A release of the small world: its files, that they come out the same, and what `verify` says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minisign
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import _make_release
from _environment import SetupError
from distribution import world as parts
from distribution.world import PYTHON, TAGS, Change, World, append, git, remove, replace, snapshot

pytestmark = pytest.mark.slow

ROOT = parts.SOURCE.parent
CUDA = f"sglang-0.5.23+lz1-{TAGS}.whl"
CPU = f"sglang-0.5.23+lz1.cpu-{TAGS}.whl"
IMAGES = {f"image-{which}-0.5.23+lz1.cdx.json" for which in ("cpu", "router")}
SIGNED = {"SHA256SUMS", "SHA256SUMS.minisig"}
PASSWORD = "correct horse"


@dataclass
class Release:
    """A world whose checkout is committed, with what was released from it and the keys."""

    world: World
    folder: Path
    secret: Path
    public: Path

    def verify(self, *files: str, key: object = None) -> tuple[int, str]:
        """Run `verify`; return its status and what it says."""
        paths = [self.folder / name for name in files]
        done = self.world.run("verify", *paths, "--public-key", key or self.public)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr


def commit(world: World, when: int) -> Path:
    """Make the world's checkout a repository with one commit, its files last changed at `when`."""
    checkout = world.checkout
    shutil.copytree(ROOT / "docker", checkout / "docker")
    (checkout / ".gitignore").write_text("/.cache/\n__pycache__/\n*.secret\n")
    for file in checkout.rglob("*"):
        os.utime(file, (when, when))
    git(checkout, "init", "-q")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "Release")
    (checkout / ".cache" / "upstream").mkdir(parents=True)
    shutil.copy(world.wheel, checkout / ".cache" / "upstream")
    (checkout / ".cache" / "full").write_text(git(checkout, "rev-parse", "HEAD").strip())
    return checkout


def run(world: World, *arguments: object, password: str = "") -> subprocess.CompletedProcess[str]:
    """Run scripts/release of the world's checkout, in the environment of the tests."""
    checkout = world.checkout
    env = os.environ | {"PYTHONPATH": str(checkout / "python"), "SGLANG_LZ_KEY_PASSWORD": password}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"}
    script = checkout / "scripts" / "_make_release.py"
    command = [sys.executable, "-B", *map(str, (script, *arguments))]
    options = {"env": env, "cwd": world.root, "text": True, "capture_output": True}
    return subprocess.run(command, check=False, **options)


def refused(world: World, *arguments: object, password: str = "") -> str:
    """Run what must fail and leave nothing behind; return the last sentence that it says."""
    before = snapshot(world.root)
    done = run(world, "--out", world.root / "out", *arguments, password=password)
    return parts.sentence_of(done, 1, world.root, before)


@pytest.fixture(scope="module")
def released(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A signed release, to be read only. The key has a password."""
    world = World(tmp_path_factory.mktemp("released") / "world")
    shutil.copytree(template, world.root)
    commit(world, 1_000_000_000)
    pair = minisign.KeyPair.generate()
    release = Release(world, *(world.root / name for name in ("release", "a.key", "a.key.pub")))
    release.public.write_bytes(bytes(pair.public_key))
    pair.secret_key.encrypt(PASSWORD)
    release.secret.write_bytes(bytes(pair.secret_key))
    done = run(world, "--out", release.folder, "--key", release.secret, password=PASSWORD)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{release.folder}\n"
    return release


@pytest.fixture
def release(released: Release, tmp_path: Path) -> Release:
    """A signed release of one test's own."""
    shutil.copytree(released.folder, tmp_path / "release")
    return Release(released.world, tmp_path / "release", released.secret, released.public)


@pytest.fixture
def committed(world: World) -> World:
    """A world whose checkout is committed."""
    commit(world, 1_200_000_000)
    return world


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def sign(release: Release, before: str, after: str) -> None:
    """Sign the folder as it is now with the right key; in SHA256SUMS replace `before`."""
    files = [file for file in sorted(release.folder.iterdir()) if file.name not in SIGNED]
    sums = "".join(f"{digest(file)}  {file.name}\n" for file in files)
    sums = sums.replace(before, after)
    (release.folder / "SHA256SUMS").write_text(sums)
    key = minisign.SecretKey.from_file(release.secret)
    key.decrypt(PASSWORD)
    (release.folder / "SHA256SUMS.minisig").write_bytes(bytes(key.sign(sums.encode())))


# What is in a release


def test_files(released: Release) -> None:
    found = {file.name for file in released.folder.iterdir()}
    sboms = {f"{name}.cdx.json" for name in (CUDA, CPU)}
    assert found == {CUDA, CPU, "provenance.json", *sboms, *IMAGES, *SIGNED}
    lines = (released.folder / "SHA256SUMS").read_text().splitlines()
    assert dict(line.split("  ")[::-1] for line in lines) == {
        name: digest(released.folder / name) for name in found - SIGNED
    }
    assert not list(released.world.root.rglob(".sglang-lz-*"))


def test_the_same_bytes_elsewhere_later_and_beside_ignored_files(
    released: Release, world: World
) -> None:
    """The signature apart; this one has none, as that of someone without the key."""
    checkout = commit(world, 1_700_000_000)
    (world.package / "notes.secret").write_text("git ignores it, so git status does not name it\n")
    while time.time() < (released.folder / "SHA256SUMS").stat().st_mtime + 2:  # a zip's resolution
        time.sleep(0.1)
    done = run(world, "--out", checkout / "dist" / "release")
    assert done.returncode == 0, done.stderr
    assert "not signed" in done.stderr
    ours, theirs = snapshot(checkout / "dist" / "release"), snapshot(released.folder)
    assert theirs.pop("SHA256SUMS.minisig")
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def sbom(release: Release, name: str) -> dict[str, Any]:
    """Read an SBOM; it must be valid CycloneDX."""
    text = (release.folder / f"{name}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return dict(json.loads(text))


def sha256(part: dict[str, Any]) -> str:
    (found,) = part["hashes"]
    assert found["alg"] == "SHA-256"
    return str(found["content"])


@pytest.mark.parametrize(("name", "stand_in"), [(CUDA, False), (CPU, True)])
def test_sbom_of_a_wheel(released: Release, name: str, stand_in: bool) -> None:
    found = sbom(released, name)
    assert found["metadata"]["timestamp"].startswith("2025-11-20T00:00:00")  # of the commit
    component = found["metadata"]["component"]
    assert sha256(component) == digest(released.folder / name)
    assert component["version"] == ("0.5.23+lz1.cpu" if stand_in else "0.5.23+lz1")
    (upstream,) = component["pedigree"]["ancestors"]
    assert (upstream["version"], sha256(upstream)) == ("0.5.23", digest(released.world.wheel))
    patches = {part["name"]: sha256(part) for part in component["components"]}
    assert set(patches) == {patch["diff"]["url"] for patch in component["pedigree"]["patches"]}
    names = {name.partition("_patches/0.5.23/")[2] for name in patches}
    assert any(name.endswith("cpu/stand-in.patch") for name in names) == stand_in
    assert {digest(released.world.patches / name) for name in names} == set(patches.values())
    parts = {part["bom-ref"]: part for part in found["components"]}
    if stand_in:
        assert parts.keys() == {"torch==2.13.0", "numpy"}
        assert "version" not in parts["numpy"]
    else:
        assert parts.keys() == {"torch==2.14.1", "sglang-kernel==0.4.10", 'pytest; extra == "test"'}
        assert parts["torch==2.14.1"]["purl"] == "pkg:pypi/torch@2.14.1"
        assert parts['pytest; extra == "test"']["scope"] == "optional"
    (requires,) = (part for part in found["dependencies"] if "dependsOn" in part)
    assert requires["ref"] == component["bom-ref"]
    assert set(requires["dependsOn"]) == parts.keys()


@pytest.mark.parametrize("which", ["cpu", "router"])
def test_sbom_of_an_image(released: Release, which: str) -> None:
    components = sbom(released, f"image-{which}-0.5.23+lz1")["components"]
    parts = {part["bom-ref"]: part for part in components}
    lock = ROOT / "docker" / f"{which}.lock"
    assert sha256(parts[f"docker/{which}.lock"]) == digest(lock)
    for line in lock.read_text().splitlines():
        if "==" in line:
            assert f"pkg:pypi/{line.split()[0].replace('==', '@')}" in parts
    assert ("pkg:pypi/torch@2.13.0" in parts) == (which == "cpu")
    assert (CPU in parts) == (which == "cpu" and TAGS.endswith("x86_64") and PYTHON == "cp311")
    (base,) = (part for part in parts.values() if part["type"] == "container")
    dockerfile = (ROOT / "docker" / f"{which}.Dockerfile").read_text()
    assert f"BASE_IMAGE={base['name']}@sha256:{sha256(base)}\n" in dockerfile


def test_provenance(released: Release) -> None:
    statement = json.loads((released.folder / "provenance.json").read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {part["name"]: part["digest"]["sha256"] for part in statement["subject"]} == {
        name: digest(released.folder / name) for name in (CUDA, CPU)
    }
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"command": ["scripts/release"]}
    inputs = {part["name"]: part["digest"] for part in definition["resolvedDependencies"]}
    checkout = released.world.checkout
    assert inputs.pop("sglang-lz") == {"gitCommit": git(checkout, "rev-parse", "HEAD").strip()}
    upstream = inputs.pop(released.world.wheel.name)
    assert upstream["sha256"] == digest(released.world.wheel)
    locks = {f"docker/{name}.lock" for name in ("cpu", "router", "torch")}
    assert inputs.keys() > {*locks, "scripts/release.lock"}
    for name, found in inputs.items():
        assert found == {"sha256": digest(checkout / name)}


# What is refused


def test_a_commit_without_a_password_or_a_full_test_is_not_signed(
    released: Release, committed: World
) -> None:
    said = refused(committed, "--key", released.secret, password="wrong")
    assert f"--key {released.secret} cannot be used (wrong password for that key)" in said
    tested = committed.checkout / ".cache" / "full"
    for change, found in (
        (lambda: tested.write_text("0123"), "0123"),
        (tested.unlink, "no commit"),
    ):
        change()
        said = refused(committed, "--key", released.secret, password=PASSWORD)
        assert f"--key signs what `scripts/test full` has tested, which is {found}, not" in said


# verify


def test_a_wheel_that_differs_from_its_seal_is_not_released(release: Release) -> None:
    _make_release._check(release.folder, None)
    twice = pytest.warns(UserWarning, match="Duplicate")
    with zipfile.ZipFile(release.folder / CUDA, "a") as wheel, twice:
        wheel.writestr("sglang_lz/__init__.py", "changed = True\n")
    with pytest.raises(SetupError, match=r"differs from its seal: sglang_lz/__init__\.py was"):
        _make_release._check(release.folder, None)


def test_whole(released: Release) -> None:
    status, said = released.verify(CPU, "provenance.json", CUDA, *SIGNED)
    assert status == 0, said
    names = [line[6:].split(":")[0] for line in said.splitlines()]
    file = ["sha256", "SBOM", "provenance"]
    assert names == ["signature", *file, "sha256", *file]
    head = git(released.world.checkout, "rev-parse", "HEAD").strip()
    assert f"signed: sglang-lz 0.5.23+lz1, commit {head}" in said


def huge(name: str) -> Change:
    """100 GB without taking the place on the disk."""
    return lambda folder: os.truncate(folder / name, 10**11)


def pipe(name: str) -> Change:
    return lambda folder: ((folder / name).unlink(), os.mkfifo(folder / name))


def copy(source: str, target: str) -> Change:
    return lambda folder: shutil.copy(folder / source, folder / target)


SBOM, SUMS, SIGNATURE, MADE = f"{CPU}.cdx.json", *sorted(SIGNED), "provenance.json"
NOT_SIGNED = f"{SIGNATURE} does not sign {SUMS} with this key"
TAMPERED: dict[str, tuple[Change, str, str]] = {
    "wheel": (append(CPU), "sha256", f"{CPU} has the sha256 "),
    "SBOM": (append(SBOM), "SBOM", f"{SBOM} has the sha256 "),
    "SBOM of another": (copy(f"{CUDA}.cdx.json", SBOM), "SBOM", f"{SBOM} has the sha256 "),
    "no SBOM": (remove(SBOM), "SBOM", f"{SBOM} cannot be read (No such file"),
    "SBOM that is a pipe": (pipe(SBOM), "SBOM", f"{SBOM} cannot be read (not a regular file"),
    "provenance": (append(MADE), "provenance", f"{MADE} has the sha256 "),
    "sums": (append(SUMS), "signature", NOT_SIGNED),
    "signature": (replace(SIGNATURE, "\nRU", "\nRV"), "signature", "(unsupported signature"),
    "comment": (replace(SIGNATURE, "+lz1", "+lz2"), "signature", "(signature verification"),
    "unlisted": (lambda _: None, "sha256", f"{CPU} is not in {SUMS}"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered(release: Release, name: str) -> None:
    change, check, words = TAMPERED[name]
    change(release.folder)
    if name == "unlisted":
        sign(release, CPU, "another.whl")
    status, said = release.verify(CPU)
    assert status == 1, said
    (line,) = (line for line in said.splitlines() if line.startswith(f"FAIL  {check}: "))
    assert words in line
    if check == "signature":
        assert said == f"{line}\n"


def test_wrong_key(released: Release) -> None:
    other = minisign.KeyPair.generate().public_key
    status, said = released.verify(CPU, key=other.to_base64().decode())
    assert status == 1
    assert "SHA256SUMS.minisig does not sign SHA256SUMS with this key (incompatible key" in said


@pytest.mark.parametrize("name", sorted(SIGNED))
@pytest.mark.parametrize("change", [huge, pipe, remove])
def test_unauthenticated_input_is_read_in_bounds(
    release: Release, name: str, change: Callable[[str], Change]
) -> None:
    change(name)(release.folder)
    status, said = release.verify(CPU)
    assert status == 2
    assert f"{release.folder / name} cannot be read" in said


def test_the_text_of_a_key_is_not_read_as_a_path(release: Release, tmp_path: Path) -> None:
    """Whoever forges a release may put a key of their own where the right one's text leads."""
    right = minisign.PublicKey.from_file(release.public).to_base64().decode()
    forger = minisign.KeyPair.generate()
    sums = (release.folder / "SHA256SUMS").read_bytes()
    (release.folder / "SHA256SUMS.minisig").write_bytes(bytes(forger.secret_key.sign(sums)))
    (tmp_path / right).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / right).write_bytes(bytes(forger.public_key))
    wheel = release.folder / CPU
    done = release.world.run("verify", wheel, "--public-key", right, cwd=tmp_path)
    assert done.returncode == 1
    assert "SHA256SUMS.minisig does not sign SHA256SUMS with this key" in done.stdout
