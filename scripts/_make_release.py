"""Does the work of scripts/release, in the environment that _release.py created."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import minisign

import _sbom
from _checkout import ROOT
from _environment import CACHE, FLAVOURS, FULL, SetupError, main, say
from _release import PASSWORD, parse
from patches_tool.upstream import ARCHES, LOCK, PYTHONS, Lock, WheelPin, release_dir, sha256
from patches_tool.wheelfile import Wheel
from sglang_lz.startup.seal import NAME, Seal
from sglang_lz.startup.verify import PROVENANCE, SBOM, SIGNATURE, SUMS, examine_files

PROJECT = "pkg:generic/sglang-lz"


class Target(NamedTuple):
    """A wheel to build: the lock and the wheel of upstream that it is built from, its flavour."""

    lock: Lock
    pin: WheelPin
    flavour: str

    @property
    def filename(self) -> str:
        """The file name that `build` gives it."""
        ours = self.lock.local_version(self.lock.revision, self.flavour)
        return self.pin.filename.replace(f"{NAME}-{self.lock.version}-", f"{NAME}-{ours}-", 1)


def make_release(arguments: list[str]) -> int:
    """Run the script; return its exit status."""
    options = parse(arguments)
    out: Path = options.out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, to leave nothing behind
    if out.exists() or out.is_symlink():
        raise SetupError(f"{out} exists; a release is never overwritten: name another --out.")
    commit, time = _commit()
    if options.key:
        _check_tested(commit)
    todo = _targets(options.only)
    secret = _secret_key(options.key) if options.key else None
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
        lock = todo[0].lock
        version = lock.local_version(lock.revision, "cuda")
        for which in _sbom.IMAGES:
            wheels = list(files.glob("*.cpu-cp311-*_x86_64.whl")) if which == "cpu" else []
            text = _sbom.of_image(which, version, source, wheels, time)
            (files / f"image-{which}-{version}{SBOM}").write_text(text)
        command = ["--only", options.only] if options.only else []
        statement = _provenance(todo, source, files, commit, command)
        (files / PROVENANCE).write_text(json.dumps(statement, indent=1) + "\n")
        sums = "".join(f"{sha256(file)}  {file.name}\n" for file in sorted(files.iterdir()))
        (files / SUMS).write_text(sums)
        if secret:
            comment = f"sglang-lz {version}, commit {commit}"
            signature = secret.sign(sums.encode(), trusted_comment=comment)
            (files / SIGNATURE).write_bytes(bytes(signature) + b"\n")
        _check(files, secret)
        files.rename(out)
    say(f"{len(todo)} wheels of commit {commit}, {'signed' if secret else 'not signed: no --key'}")
    print(out)
    return 0


def _commit() -> tuple[str, datetime]:
    """Return the checked-out commit and its time; SetupError if the work tree differs from it."""
    if changes := _git("status", "--porcelain").splitlines():
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise SetupError(f"{changes[0][3:]}{more} differs from the commit; commit or remove it.")
    commit, seconds = _git("log", "-1", "--format=%H %ct").split()
    return commit, datetime.fromtimestamp(int(seconds), UTC)


def _check_tested(commit: str) -> None:
    """Raise SetupError unless `scripts/test full` has passed at a commit."""
    tested = FULL.read_text() if FULL.exists() else "no commit"
    if tested != commit:
        raise SetupError(
            f"--key signs what `scripts/test full` has tested, which is {tested}, not "
            f"{commit}; run it, or make the release without --key."
        )


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
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
    script = source / "scripts" / "_patches.py"
    command = [sys.executable, "-B", str(script), "build", "--out", str(files)]
    command += ["--python", target.pin.python, "--arch", target.pin.arch]
    command += ["--flavour", target.flavour, "--cache", str(CACHE / "upstream")]
    # Its output must not be part of ours.
    if subprocess.run(command, cwd=source, stdout=sys.stderr, check=False).returncode:
        raise SetupError(f"{target.filename} could not be built, see the lines above.")
    return files / target.filename


def _provenance(
    todo: list[Target], source: Path, files: Path, commit: str, command: list[str]
) -> dict[str, Any]:
    """Return an in-toto statement with SLSA provenance: which wheels were built, and from what."""
    locks = [*sorted((source / "docker").glob("*.lock")), source / "scripts" / "release.lock"]
    locks.append(source / "patches" / todo[0].lock.version / LOCK)
    digests = {target.pin.filename: target.pin.sha256 for target in todo}
    digests |= {lock.relative_to(source).as_posix(): sha256(lock) for lock in locks}
    built = {target.filename: sha256(files / target.filename) for target in todo}

    def described(found: dict[str, str]) -> list[dict[str, Any]]:
        return [{"name": name, "digest": {"sha256": digest}} for name, digest in found.items()]

    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": described(built),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{PROJECT}#docs/MAINTAINING.md",
                "externalParameters": {"command": ["scripts/release", *command]},
                "internalParameters": {"zlib": zlib.ZLIB_RUNTIME_VERSION},
                "resolvedDependencies": [
                    {"name": "sglang-lz", "digest": {"gitCommit": commit}},
                    *described(digests),
                ],
            },
            "runDetails": {"builder": {"id": f"{PROJECT}#scripts/release"}},
        },
    }


def _check(files: Path, secret: minisign.SecretKey | None) -> None:
    """Verify the release as a user would; SetupError if a check fails."""
    for file in files.glob("*.whl"):
        with Wheel(file) as wheel:
            problems = Seal.read(wheel.read).problems(wheel.read)
        if problems:
            raise SetupError(f"{file.name} differs from its seal: {problems[0]}.")
    key = secret.get_public_key().to_base64().decode() if secret else ""
    for check in examine_files(sorted(files.iterdir()), key) if secret else ():
        if not check.ok:
            raise SetupError(f"what was made does not pass its checks: {check}.")


def _secret_key(path: Path) -> minisign.SecretKey:
    try:
        key = minisign.SecretKey.from_file(path)
        if key.is_encrypted():
            password = os.environ.get(PASSWORD)
            asked = getpass.getpass(f"Password of {path}: ") if password is None else password
            key.decrypt(asked)
    except ValueError as error:
        raise SetupError(f"--key {path} cannot be used ({error}).") from None
    return key


if __name__ == "__main__":
    main(make_release)
