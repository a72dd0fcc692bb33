"""Applies patches exactly, with ``git apply``: from one blob id to another.

Caution: in an untracked folder inside a repository, ``git apply`` exits with 0 and changes nothing.
Therefore git is prevented from looking above the staging folder, and its exit status is not
trusted: the blob id of every file is checked before and after.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from patches_tool.patchset import EXPORT_AGAIN, UPSTREAM_PREFIX, PatchSet
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import Read

_NAME, _EMAIL = "sglang-lz maintainers", "maintainers@sglang-lz.invalid"
_WHO = {"NAME": _NAME, "EMAIL": _EMAIL, "DATE": "2025-11-20T00:00:00+0000"}
IDENTITY = {f"GIT_{who}_{key}": _WHO[key] for who in ("AUTHOR", "COMMITTER") for key in _WHO}
"""Every patch has the same author and date. Our own git history records who changed it and when."""


def blob_id(data: bytes) -> str:
    """Return git's id of a file's bytes (40 hex digits)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def git(args: Sequence[str], cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git in ``cwd``, and nowhere above, with IDENTITY and no configuration of the user.

    Raises DistError only if git is not installed; a failing exit status is returned.
    """
    cwd = cwd.resolve()
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | IDENTITY
    env |= {"GIT_CEILING_DIRECTORIES": str(cwd.parent), "GIT_CONFIG_GLOBAL": os.devnull}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C", "TZ": "UTC"}
    command = ["git", "-c", "core.autocrlf=false", "-c", "apply.whitespace=nowarn", *args]
    try:
        return subprocess.run(
            command, check=False, cwd=cwd, env=env, input=stdin, capture_output=True
        )
    except FileNotFoundError:
        raise DistError("git is not installed; install git and run again.") from None


def run(tree: Path, *args: str, stdin: str = "") -> str:
    """Run `git` in ``tree`` and return its output; DistError if it fails."""
    result = git(args, tree, stdin.encode())
    if result.returncode != 0:
        reason = result.stderr.decode("utf-8", "replace").strip() or "no reason given"
        raise DistError(f"`git {args[0]}` failed in {tree} ({reason.splitlines()[-1]}).")
    return result.stdout.decode("utf-8", "replace").rstrip("\n")


def transform(
    patches: PatchSet, read: Read, version: str, reverse: bool = False
) -> dict[str, bytes]:
    """Return the new bytes of every file that the patches change, without writing any file.

    ``read`` returns the current bytes, which must be exactly upstream's (with ``reverse``: exactly
    the patched ones). Raises DistError, naming the file, if they are not, or if a patch does not
    apply.
    """
    again = f"nothing was changed; restore sglang {version} (reinstall it, or git restore)."
    files, wrong = {}, []
    for path, (before, after) in patches.blobs.items():
        if (data := read(path)) is None:
            raise DistError(f"{path} is missing, {again}")
        if (blob := blob_id(data)) not in (before, after):
            raise DistError(
                f"{path} is neither the file of sglang {version} nor the patched one (it was "
                f"edited or is of another release), {again}"
            )
        files[path] = data
        wrong += [path] if blob != (after if reverse else before) else []
    if wrong:
        found = f"{wrong[0]} is {'not' if reverse else 'already'} patched"
        if len(wrong) < len(files):
            raise DistError(f"The patches are half applied ({found}), {again}")
        raise DistError(f"{found}: there is nothing to do, nothing was changed.")
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as name:
        stage = Path(name).resolve() / UPSTREAM_PREFIX
        for path, data in files.items():
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            (stage / path).write_bytes(data)
        for patch in reversed(patches.patches) if reverse else patches.patches:
            apply_one(patch.name, patch.data, stage.parent, reverse)
        made = {path: (stage / path).read_bytes() for path in files}
    for path, (before, after) in patches.blobs.items():
        if blob_id(made[path]) != (before if reverse else after):
            raise DistError(
                f"The patches did not turn {path} into the blob that they name, nothing was "
                f"changed{EXPORT_AGAIN}."
            )
    return made


def apply_one(name: str, data: bytes, tree: Path, reverse: bool = False) -> None:
    """Apply one patch to the files below ``tree``; DistError if git refuses it."""
    result = git(["apply", *(["--reverse"] if reverse else []), "-"], tree, data)
    if result.returncode != 0:
        errors = re.findall(r"^error: (.+)", result.stderr.decode("utf-8", "replace"), re.M)
        reason = errors[0] if errors else "git gave no reason"
        raise DistError(f"{name} does not apply ({reason}), nothing was changed{EXPORT_AGAIN}.")
