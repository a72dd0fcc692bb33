"""Does the work of scripts/release, in the environment that _release.py created."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import minisign

import _sbom
from _checkout import ROOT
from _environment import CACHE, FLAVOURS, FULL, SetupError, main, say
from _release import PASSWORD, parse
from sglang_lz.distribution.doctor import examine_wheel
from sglang_lz.distribution.lock import ARCHES, NAME, PYTHONS, Lock, WheelPin
from sglang_lz.distribution.sources import LOCK, release_dir
from sglang_lz.distribution.verify import PROVENANCE, SBOM, SIGNATURE, SUMS, examine_files

OPSLIMIT, MEMLIMIT = 33_554_432, 1_073_741_824
"""What trying one password costs: the work and bytes of memory that `minisign -G` asks for."""
PROJECT = "pkg:generic/sglang-lz"


@dataclass(frozen=True)
class Target:
    """A wheel to build: its upstream release, the upstream wheel it is built from, its flavour."""

    lock: Lock
    pin: WheelPin
    flavour: str

    @property
    def version(self) -> str:
        """Our version of it."""
        return self.lock.local_version(self.lock.revision, self.flavour)

    @property
    def filename(self) -> str:
        """The file name that `build` gives it."""
        before, after = (f"{NAME}-{version}-" for version in (self.lock.version, self.version))
        return self.pin.filename.replace(before, after, 1)


def make_release(arguments: list[str]) -> int:
    """Run the script; return its exit status."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, to leave nothing behind
    if options.new_key:
        _new_key(options.new_key)
    else:
        _make(options.out.absolute(), options.key, options.only)
    return 0


def _make(out: Path, key: Path | None, only: str | None) -> None:
    if out.exists() or out.is_symlink():
        raise SetupError(f"{out} exists; a release is never overwritten: name another --out.")
    commit, time = _commit()
    if key:
        _check_tested(commit)
    todo = _targets(only)
    secret = _secret_key(key) if key else None
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sglang-lz-", dir=out.parent) as temporary:
        # A clone contains exactly the commit; a checkout also contains files that git ignores.
        source, files = Path(temporary, "source"), Path(temporary, "release")
        _git("clone", "--quiet", "--shared", str(ROOT), str(source))
        files.mkdir()
        for number, target in enumerate(todo):
            say(f"[{number + 1}/{len(todo)}] {target.filename}")
            wheel = _build(target, source, files)
            text = _sbom.of_wheel(wheel, target.lock, target.pin, time)
            wheel.with_name(wheel.name + SBOM).write_text(text)
        _image_sboms(todo, source, files, time)
        command = ["--only", only] if only else []
        statement = _provenance(todo, source, files, commit, command)
        (files / PROVENANCE).write_text(json.dumps(statement, indent=1) + "\n")
        sums = "".join(f"{_sha256(file)}  {file.name}\n" for file in sorted(files.iterdir()))
        (files / SUMS).write_text(sums)
        if secret:
            versions = ", ".join(
                dict.fromkeys(t.lock.local_version(t.lock.revision, "cuda") for t in todo)
            )
            signature = secret.sign(
                sums.encode(), trusted_comment=f"sglang-lz {versions}, commit {commit}"
            )
            (files / SIGNATURE).write_bytes(bytes(signature) + b"\n")
        _check(files, secret)
        files.rename(out)
    say(f"{len(todo)} wheels of commit {commit}, {'signed' if secret else 'not signed: no --key'}")
    print(out)


def _commit() -> tuple[str, datetime]:
    """Return the checked-out commit and its time; SetupError if the work tree differs from it."""
    if changes := _git("status", "--porcelain").splitlines():
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise SetupError(
            f"{changes[0][3:]}{more} differs from the commit, and a release is made from a commit; "
            "commit or remove it."
        )
    commit, seconds = _git("log", "-1", "--format=%H %ct").split()
    return commit, datetime.fromtimestamp(int(seconds), UTC)


def _check_tested(commit: str) -> None:
    """Raise SetupError unless `scripts/test full` has passed at a commit."""
    tested = FULL.read_text() if FULL.exists() else ""
    if tested != commit:
        found = f"it passed last at {tested}" if tested else "it has not passed in this checkout"
        raise SetupError(
            f"--key signs what `scripts/test full` has tested, but at commit {commit} {found}; "
            "run it, or make the release without --key."
        )


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.splitlines() or ["no reason given"])[-1]
        raise SetupError(f"`git {' '.join(arguments)}` failed in {ROOT}: {reason}")
    return done.stdout


def _targets(only: str | None) -> list[Target]:
    """Return the wheels to build; SetupError if `only` has an unknown word or matches none."""
    kinds: tuple[tuple[str, ...], ...] = (PYTHONS, ARCHES, FLAVOURS)
    words = set(only.split(",")) if only else set()
    if unknown := words.difference(*kinds):
        known = ", ".join(word for kind in kinds for word in kind)
        raise SetupError(f"--only has {', '.join(sorted(unknown))}; it takes of {known}.")
    pythons, arches, flavours = (set(kind) & words or set(kind) for kind in kinds)
    lock = Lock.load(release_dir() / LOCK)
    found = [
        Target(lock, pin, flavour)
        for pin in lock.wheels
        for flavour in FLAVOURS
        if pin.python in pythons and pin.arch in arches and flavour in flavours
    ]
    if not found:
        raise SetupError(f"No wheel of upstream that is pinned is left by --only {only}.")
    return found


def _build(target: Target, source: Path, files: Path) -> Path:
    command = [sys.executable, "-B", "-m", "sglang_lz", "build", "--out", str(files)]
    command += ["--python", target.pin.python, "--arch", target.pin.arch]
    command += ["--flavour", target.flavour]
    command += ["--cache", str(CACHE / "upstream")]
    env = os.environ | {"PYTHONPATH": str(source / "python")}
    # Its output must not be part of ours.
    if subprocess.run(command, env=env, cwd=source, stdout=sys.stderr, check=False).returncode:
        raise SetupError(f"{target.filename} could not be built, see the lines above.")
    return files / target.filename


def _image_sboms(todo: list[Target], source: Path, files: Path, time: datetime) -> None:
    """Write the SBOMs of the images; the CPU image has the wheel for its own Python."""
    for lock in dict.fromkeys(target.lock for target in todo):
        version = lock.local_version(lock.revision, "cuda")
        wheels = [
            files / target.filename
            for target in todo
            if (target.lock, target.pin.python, target.pin.arch, target.flavour)
            == (lock, "cp311", "x86_64", "cpu")
        ]
        for which in _sbom.IMAGES:
            wheel = wheels[0] if which == "cpu" and wheels else None
            text = _sbom.of_image(which, version, source, wheel, time)
            (files / f"image-{which}-{version}{SBOM}").write_text(text)


def _provenance(
    todo: list[Target], source: Path, files: Path, commit: str, command: list[str]
) -> dict[str, Any]:
    """Return an in-toto statement with SLSA provenance: which wheels were built, and from what."""
    locks = [*sorted((source / "docker").glob("*.lock")), source / "scripts" / "release.lock"]
    locks += [source / "patches" / target.lock.version / LOCK for target in todo]
    pins = {target.pin.filename: target.pin.sha256 for target in todo}
    materials = [
        {"name": "sglang-lz", "digest": {"gitCommit": commit}},
        *({"name": name, "digest": {"sha256": digest}} for name, digest in pins.items()),
        *(
            {"name": lock.relative_to(source).as_posix(), "digest": {"sha256": _sha256(lock)}}
            for lock in dict.fromkeys(locks)
        ),
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": target.filename, "digest": {"sha256": _sha256(files / target.filename)}}
            for target in todo
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{PROJECT}#docs/MAINTAINING.md",
                "externalParameters": {"command": ["scripts/release", *command]},
                "internalParameters": {"zlib": zlib.ZLIB_RUNTIME_VERSION},
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": f"{PROJECT}#scripts/release"}},
        },
    }


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _check(files: Path, secret: minisign.SecretKey | None) -> None:
    """Verify the release as a user would; SetupError if a check fails."""
    made = sorted(files.iterdir())
    if secret:
        key = secret.get_public_key().to_base64().decode()
        checks = list(examine_files(made, key))
    else:
        checks = [c for file in made if file.suffix == ".whl" for c in examine_wheel(file)]
    for check in checks:
        if not check.ok:
            raise SetupError(f"what was made does not pass its checks: {check}.")


def _secret_key(path: Path) -> minisign.SecretKey:
    try:
        key = minisign.SecretKey.from_file(path)
        if key.is_encrypted():
            key.decrypt(_password(lambda: getpass.getpass(f"Password of {path}: ")))
    except ValueError as error:
        raise SetupError(f"--key {path} cannot be used ({error}).") from None
    return key


def _new_key(path: Path) -> None:
    public = path.with_name(f"{path.name}.pub")
    if existing := next((file for file in (path, public) if file.exists()), None):
        raise SetupError(f"{existing} exists; a key is never overwritten: name another file.")
    password = _password(_ask_twice)
    pair = minisign.KeyPair.generate()
    if password:
        pair.secret_key.encrypt(password, opslimit=OPSLIMIT, memlimit=MEMLIMIT)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(bytes(pair.secret_key) + b"\n")
    public.write_bytes(bytes(pair.public_key) + b"\n")
    guard = "" if password else ", without a password"
    say(f"{path} is the secret key{guard}: nobody else may have it.")
    say(f"{public} is the public key, for everyone:")
    print(pair.public_key.to_base64().decode())


def _password(ask: Callable[[], str]) -> str:
    found = os.environ.get(PASSWORD)
    return ask() if found is None else found


def _ask_twice() -> str:
    password = getpass.getpass("Password of the new key (empty for none): ")
    if getpass.getpass("Once more: ") != password:
        raise SetupError("the two passwords differ; nothing was made.")
    return password


if __name__ == "__main__":
    main(make_release)
