"""Checks the rules for patch sets that can be checked without upstream's files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import DistError
from .patchset import DIFFERS, FIELDS, GROUPS, Patch, PatchSet, read_absent


@dataclass(frozen=True)
class Budget:
    """The size limits of a patch set. If you raise one, give the reason in the commit message."""

    patches: int
    files: int
    added_lines: int
    added_lines_per_hunk: int


BUDGET = Budget(patches=56, files=66, added_lines=470, added_lines_per_hunk=12)
"""Small enough to read in one sitting; a hunk that needs more belongs into the package."""

SUBJECT_LENGTH = 72


def lint(root: Path) -> list[str]:
    """Return the problems of the patch set in ``root``, one sentence each; empty if none."""
    try:
        patches = PatchSet.load(root)
    except DistError as error:
        return [str(error)]
    listed = {patch.name for patch in patches.patches}
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.patch"))
    unlisted = [f"{name} is not in series; list it or remove it." for name in files]
    problems = [text for name, text in zip(files, unlisted, strict=True) if name not in listed]
    return problems + lint_patches(patches)


def compare(root: Path, newest: Path) -> list[str]:
    """Return the unexplained differences of an older release's set in ``root`` from ``newest``."""
    old = {patch.name: patch for patch in PatchSet.load(root).patches}
    new = {patch.name: patch for patch in PatchSet.load(newest).patches}
    absent = {**read_absent(root), **read_absent(newest)}
    return [f"{root.name}/{text}." for text in differences(old, new, absent, newest.name)]


def differences(
    one: dict[str, Patch], other: dict[str, Patch], absent: Collection[str], version: str
) -> Iterator[str]:
    """Yield the unexplained differences between the patch sets of two releases.

    Patches of the same name must have the same message. If they change different lines, one of them
    must say why in ``Differs:``. If a release does not need a patch, its series must say why.

    Args:
        one: the patches of one release by name.
        other: the patches of release ``version`` by name.
        absent: the patches that either series lists as absent.
        version: the release to name in the messages.
    """
    for name in sorted(one.keys() ^ other.keys()):
        if name not in absent:
            yield f"{name} is in one set only; name it in the other's series: # absent NAME: REASON"
    for name in sorted(one.keys() & other.keys()):
        told = DIFFERS in one[name].fields or DIFFERS in other[name].fields
        if one[name].same_everywhere != other[name].same_everywhere:
            yield f"{name} has another message than in {version}"
        elif one[name].changed_lines != other[name].changed_lines and not told:
            yield f"{name} changes other lines than in {version}; say why in {DIFFERS}:"


def lint_patches(patches: PatchSet) -> list[str]:
    """Return the problems of loaded patches."""
    problems = [f"{p.name}: {text}." for p in patches.patches for text in _patch_problems(p)]
    try:
        blobs = patches.blobs
    except DistError as error:
        return problems if any(str(error) in text for text in problems) else [*problems, str(error)]
    added = sum(change.added for patch in patches.patches for change in patch.changes)
    for what, number, limit in (
        ("patches", len(patches.patches), BUDGET.patches),
        ("changed files", len(blobs), BUDGET.files),
        ("added lines", added, BUDGET.added_lines),
    ):
        if number > limit:
            problems.append(f"{number} {what} are more than the budget of {limit} (lint.py).")
    return problems


def _patch_problems(patch: Patch) -> Iterator[str]:
    if patch.group not in GROUPS:
        yield f"{patch.group!r} is not a group ({', '.join(GROUPS)})"
    if not re.match(r"From 0{40} Mon Sep 17 00:00:00 2001\nFrom: ", patch.head):
        yield "it does not begin as `sglang-lz export` writes it (--zero-commit)"
    if not patch.subject:
        yield "the Subject is missing"
    elif "\n" in patch.subject or len(patch.subject) > SUBJECT_LENGTH:
        yield f"the Subject is longer than {SUBJECT_LENGTH} characters"
    elif not re.match(r"[A-Z][a-z]+ .*[^.]$", patch.subject) or patch.subject.startswith("["):
        yield "the Subject is not an imperative sentence without a full stop"
    for field in FIELDS:
        if not patch.fields.get(field):
            yield f"the field {field}: is missing or empty"
    try:
        changes = patch.changes
    except DistError as error:
        yield str(error).removeprefix(f"{patch.name}: ").removesuffix(".")
        return
    for change in changes:
        for hunk in change.hunks:
            lines = [line[1:] for line in hunk if line.startswith(b"+")]
            for line in lines:
                if line.removesuffix(b"\r")[-1:] in (b" ", b"\t"):
                    yield f"an added line of {change.path} ends with a blank: {line.decode()!r}"
            if len(lines) > BUDGET.added_lines_per_hunk:
                yield (
                    f"a hunk of {change.path} adds {len(lines)} lines, more than "
                    f"{BUDGET.added_lines_per_hunk}: move the logic into sglang_lz"
                )
