"""Applies patches exactly, with ``git apply``: from one blob id to another, without fuzz or offset.

Caution: in an untracked folder inside a repository, ``git apply`` exits with 0 and changes nothing.
Therefore git is prevented from looking above the staging folder, and its exit status is not
trusted: the blob id of every file is checked before the first patch and after each patch.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from .errors import DistError
from .patchset import EXPORT_AGAIN, UPSTREAM_PREFIX, PatchSet

Read = Callable[[str], bytes | None]
"""Reads a file by its path below the wheel's root; None if there is none."""

State = Literal["upstream", "patched"]


def blob_id(data: bytes) -> str:
    """Return git's id of a file's bytes (40 hex digits)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def git(
    args: Sequence[str], cwd: Path, stdin: bytes = b"", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run git in ``cwd`` with only the repository's own configuration and ``environ``.

    It never looks for a repository above ``cwd``. A failing exit status is returned; DistError is
    raised only if git is not installed.
    """
    cwd = cwd.resolve()
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {
        "GIT_CEILING_DIRECTORIES": str(cwd.parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
        "TZ": "UTC",
        **(environ or {}),
    }
    command = ["git", "-c", "core.autocrlf=false", "-c", "apply.whitespace=nowarn", *args]
    try:
        return subprocess.run(
            command, check=False, cwd=cwd, env=env, input=stdin, capture_output=True
        )
    except FileNotFoundError:
        raise DistError("git is not installed; install git and run again.") from None


def tree_state(patches: PatchSet, read: Read, version: str) -> State:
    """Return whether the files that the patches change are all upstream's or all patched.

    Raises DistError, naming the file, if one is missing or is neither (because it was edited or
    belongs to another release), or if some are upstream's and some are patched.
    """
    again = f"restore sglang {version} (reinstall it, or git restore) and run again"
    seen: dict[State, str] = {}
    for path, (before, after) in patches.blobs.items():
        data = read(path)
        if data is None:
            raise DistError(f"{path} is missing, nothing was changed; {again}.")
        blob = blob_id(data)
        if blob not in (before, after):
            raise DistError(
                f"{path} is neither the file of sglang {version} nor the patched one (it was "
                f"edited or is of another release), nothing was changed; {again}."
            )
        seen["upstream" if blob == before else "patched"] = path
    if len(seen) == 2:
        raise DistError(
            f"The patches are half applied ({seen['patched']} is patched, {seen['upstream']} is "
            f"not), nothing was changed; {again}."
        )
    return next(iter(seen), "upstream")


def transform(
    patches: PatchSet, read: Read, version: str, reverse: bool = False
) -> dict[str, bytes]:
    """Return the new bytes of every file that the patches change, without writing any file.

    ``read`` returns the current bytes, which must be exactly upstream's (with ``reverse``: exactly
    the patched ones). Raises DistError if they are not, or if a patch does not apply exactly in
    place.
    """
    state = tree_state(patches, read, version)
    if patches.blobs and state != ("patched" if reverse else "upstream"):
        path = next(iter(patches.blobs))
        raise DistError(
            f"{path} is {'not patched' if reverse else 'already patched'}: there is nothing to "
            f"{'revert' if reverse else 'apply'}, nothing was changed."
        )
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as name:
        stage = Path(name).resolve()
        for path in patches.blobs:
            file = stage / UPSTREAM_PREFIX / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(read(path) or b"")
        for patch in reversed(patches.patches) if reverse else patches.patches:
            apply_one(patch.name, patch.data, stage, reverse)
            for change in patch.changes:
                blob = blob_id((stage / UPSTREAM_PREFIX / change.path).read_bytes())
                if blob != (change.old_blob if reverse else change.new_blob):
                    raise DistError(
                        f"{patch.name} did not turn {change.path} into the blob that it names, "
                        f"nothing was changed{EXPORT_AGAIN}."
                    )
        return {path: (stage / UPSTREAM_PREFIX / path).read_bytes() for path in patches.blobs}


def apply_one(name: str, data: bytes, tree: Path, reverse: bool = False) -> None:
    """Apply one patch to the files below ``tree``; DistError if a hunk is not exactly in place."""
    args = ["apply", "--verbose", *(["--reverse"] if reverse else []), "-"]
    result = git(args, tree, data)
    lines = result.stderr.decode("utf-8", "replace").splitlines()
    if result.returncode != 0:
        errors = [line for line in lines if re.match("error: (?!while searching)", line)]
        reason = errors[0].removeprefix("error: ") if errors else "git gave no reason"
        raise DistError(f"{name} does not apply ({reason}), nothing was changed{EXPORT_AGAIN}.")
    for line in lines:
        if "(offset " in line or " fuzz " in line:
            raise DistError(
                f"{name} applies only out of place ({line.strip().rstrip('.')}), nothing was "
                f"changed{EXPORT_AGAIN}."
            )
