"""Checks the rules for patch sets that can be checked without upstream's files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import DistError
from .patchset import FIELDS, GROUPS, Patch, PatchSet


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
