"""Carrying commits from one release's work tree into another's, one at a time.

git carries what it can. Where it calls a conflict although upstream only changed lines *beside*
ours, both changes are put together: line ranges that do not overlap have only one result. Those are
named, to be looked at. What overlaps, or lies in a file that is gone, is for a person.
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
"""The branches of the other release's commits, and of that release without them."""

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Carried:
    """What came of one patch; ``places`` are files, with line numbers where ours went."""

    name: str
    status: Status
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.status:14} {self.name}{''.join(f'  {place}' for place in self.places)}"


@dataclass(frozen=True)
class Change:
    """One change of lines ``[start, end)`` of a file, counted from 0, to ``lines``."""

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
    """Return the names of the patches that ``tree``'s branch has."""
    lines = run(tree, "rev-list", f"{BASE}..HEAD").splitlines()
    return {_patch_name(tree, commit) for commit in lines}


def unfinished(tree: Path) -> list[str]:
    """Return the files that the commit being carried leaves to a person; empty if none is."""
    return run(tree, "diff", "--name-only", "--diff-filter=U").splitlines()


def in_progress(tree: Path) -> bool:
    """Whether a commit is being carried."""
    return git(["rev-parse", "--verify", "--quiet", "CHERRY_PICK_HEAD"], tree).returncode == 0


def carry(tree: Path, name: str, commit: str) -> Carried:
    """Carry one commit; a conflict is left in ``tree`` as git leaves it."""
    result = git(["cherry-pick", commit], tree, environ=IDENTITY)
    if result.returncode == 0:
        return Carried(name, "clean")
    if not in_progress(tree):
        reason = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        raise DistError(f"`git cherry-pick` failed in {tree} ({reason[-1]}).")
    files = unfinished(tree)
    if not files:  # the release has what the patch does
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
    """Commit what is being carried, with the message that it came with."""
    run(tree, "-c", "core.editor=true", "cherry-pick", "--continue")


def give_up(tree: Path) -> None:
    """Take back the commit that is being carried."""
    run(tree, "cherry-pick", "--abort")


def merge(
    base: Sequence[bytes], theirs: Iterable[Change], ours: Iterable[Change]
) -> tuple[list[bytes], list[int]] | None:
    """Put two sets of changes of ``base`` together; None if some of them overlap.

    At the same place upstream's new lines come first: a field of ours must stay the last.

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
    """Run git in ``tree`` as the maintainers; return its output; DistError if it fails."""
    result = git(args, tree, environ=IDENTITY)
    if result.returncode != 0:
        reason = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        raise DistError(f"`git {' '.join(args[:2])}` failed in {tree} ({reason[-1]}).")
    return result.stdout.decode("utf-8", "replace").rstrip("\n")


def show(tree: Path, commit: str, path: str) -> bytes | None:
    """Return the bytes of a file, by its path below the wheel's root; None if it has none."""
    result = git(["show", f"{commit}:{UPSTREAM_PREFIX}{path}"], tree)
    return result.stdout if result.returncode == 0 else None


def _patch_name(tree: Path, commit: str) -> str:
    names = re.findall(rf"^{MARK}(\S+)$", run(tree, "log", "-1", "--format=%B", commit), re.M)
    return names[0] if names else commit[:10]


def _merge_file(tree: Path, file: str) -> tuple[bytes, list[int]] | None:
    """Merge the three versions of a file that git calls a conflict; None if it is a true one."""
    versions = [git(["rev-parse", "--verify", f":{stage}:{file}"], tree) for stage in (1, 2, 3)]
    if any(version.returncode for version in versions):
        return None  # one side has no such file
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
        # Of nothing, git names the line before.
        start, to = start - (count > 0), to - (added > 0)
        found.append(Change(start, start + count, tuple(new[to : to + added])))
    return found
