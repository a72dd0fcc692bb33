"""Carries commits from one release's work tree into another's, one at a time.

git cherry-picks as many as it can. It also reports a conflict if upstream changed only lines
*beside* ours. In that case both changes are combined, because line ranges that do not overlap can
be merged in only one way. Those places are listed for review. Overlapping changes, and changes to
files that no longer exist, are left for a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import DistError
from .gitapply import git
from .patchset import UPSTREAM_PREFIX
from .workspace import BASE, IDENTITY, MARK

Status = Literal["clean", "beside", "conflict", "there already"]
FROM, FROM_UPSTREAM = "from", "from-upstream"
"""The branches with the other release's commits, and with that release without them."""

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Carried:
    """The result for one patch; ``places`` are files, with the line numbers of our changes."""

    name: str
    status: Status
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.status:14} {self.name}{''.join(f'  {place}' for place in self.places)}"


@dataclass(frozen=True)
class Change:
    """Replaces lines ``[start, end)`` of a file, counted from 0, with ``lines``."""

    start: int
    end: int
    lines: tuple[bytes, ...]


def commits(tree: Path) -> list[tuple[str, str]]:
    """Return the commits to carry, oldest first, as (patch name, commit)."""
    found = []
    for commit in run(tree, "rev-list", "--reverse", f"{FROM_UPSTREAM}..{FROM}").splitlines():
        found.append((_patch_name(tree, commit), commit))
    return found


def carried(tree: Path) -> set[str]:
    """Return the names of the patches on ``tree``'s branch."""
    lines = run(tree, "rev-list", f"{BASE}..HEAD").splitlines()
    return {_patch_name(tree, commit) for commit in lines}


def unfinished(tree: Path) -> list[str]:
    """Return the files of the current commit that still need manual work; may be empty."""
    return run(tree, "diff", "--name-only", "--diff-filter=U").splitlines()


def in_progress(tree: Path) -> bool:
    """Whether a commit is being carried."""
    return git(["rev-parse", "--verify", "--quiet", "CHERRY_PICK_HEAD"], tree).returncode == 0


def carry(tree: Path, name: str, commit: str) -> Carried:
    """Carry one commit. A conflict is left in ``tree`` as git leaves it."""
    result = git(["cherry-pick", commit], tree, environ=IDENTITY)
    if result.returncode == 0:
        return Carried(name, "clean")
    if not in_progress(tree):
        reason = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        raise DistError(f"`git cherry-pick` failed in {tree} ({reason[-1]}).")
    files = unfinished(tree)
    if not files:  # the release already contains the change
        run(tree, "cherry-pick", "--skip")
        return Carried(name, "there already")
    places: list[str] = []
    for file in files:
        merged = _merge_file(tree, file)
        if merged is None:
            return Carried(name, "conflict", tuple(files))
        text, lines = merged
        (tree / file).write_bytes(text)
        run(tree, "add", "--", file)
        places += [f"{file}:{line}" for line in lines]
    finish(tree)
    return Carried(name, "beside", tuple(places))


def finish(tree: Path) -> None:
    """Commit what is being carried, with its original message."""
    run(tree, "-c", "core.editor=true", "cherry-pick", "--continue")


def abort(tree: Path) -> None:
    """Stop carrying the current commit, and leave ``tree`` as it was before it."""
    run(tree, "cherry-pick", "--abort")


def merge(
    base: Sequence[bytes], theirs: Iterable[Change], ours: Iterable[Change]
) -> tuple[list[bytes], list[int]] | None:
    """Combine two sets of changes to ``base``; None if some of them overlap.

    At the same position, upstream's new lines come first, because our fields must stay last.

    Returns:
        the lines, and the numbers (from 1) of those at which changes of ours begin.
    """
    theirs = list(theirs)
    changes = [(c.start, c.end, False, c) for c in theirs] + [
        (c.start, c.end, True, c) for c in ours
    ]
    changes.sort(key=lambda item: item[:3])
    result: list[bytes] = []
    starts = []
    position = 0
    for start, end, is_ours, change in changes:
        if start < position:
            return None
        result += base[position:start]
        if is_ours:
            starts.append(len(result) + 1)
        result += change.lines
        position = end
    return [*result, *base[position:]], starts


def run(tree: Path, *args: str) -> str:
    """Run git in ``tree`` under our identity and return its output; DistError if it fails."""
    result = git(args, tree, environ=IDENTITY)
    if result.returncode != 0:
        reason = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        raise DistError(f"`git {' '.join(args[:2])}` failed in {tree} ({reason[-1]}).")
    return result.stdout.decode("utf-8", "replace").rstrip("\n")


def show(tree: Path, commit: str, path: str) -> bytes | None:
    """Return a file in a commit, by its path below the wheel's root; None if it does not exist."""
    result = git(["show", f"{commit}:{UPSTREAM_PREFIX}{path}"], tree)
    return result.stdout if result.returncode == 0 else None


def _patch_name(tree: Path, commit: str) -> str:
    names = re.findall(rf"^{MARK}(\S+)$", run(tree, "log", "-1", "--format=%B", commit), re.M)
    return names[0] if names else commit[:10]


def _merge_file(tree: Path, file: str) -> tuple[bytes, list[int]] | None:
    """Merge the three versions of a file in conflict; None if they really do conflict."""
    versions = [git(["rev-parse", "--verify", f":{stage}:{file}"], tree) for stage in (1, 2, 3)]
    if any(version.returncode for version in versions):
        return None  # the file does not exist on one side
    blobs = [version.stdout.decode().strip() for version in versions]
    base = git(["cat-file", "blob", blobs[0]], tree).stdout.splitlines(keepends=True)
    theirs, ours = (_changes(tree, blobs[0], blob) for blob in blobs[1:])
    merged = merge(base, theirs, ours)
    return merged and (b"".join(merged[0]), merged[1])


def _changes(tree: Path, before: str, after: str) -> list[Change]:
    text = git(["diff", "--unified=0", "--no-color", before, after], tree).stdout
    lines = text.splitlines(keepends=True)
    new = git(["cat-file", "blob", after], tree).stdout.splitlines(keepends=True)
    found = []
    for match in filter(None, map(_HUNK.match, lines)):
        start, count, to, added = (int(n) if n else 1 for n in match.groups())
        # For an empty range, git gives the number of the line before it.
        start, to = start - (count > 0), to - (added > 0)
        found.append(Change(start, start + count, tuple(new[to : to + added])))
    return found
