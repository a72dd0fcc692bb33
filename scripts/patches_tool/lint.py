"""Checks the rules for patch sets that can be checked without upstream's files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from patches_tool.patchset import FIELDS, GROUPS, Patch, PatchSet
from sglang_lz.startup.errors import DistError

BUDGET = {"patches": 56, "changed files": 66, "added lines": 470}
"""Small enough to read in one sitting. If you raise a number, say why in the commit message."""
LINES_PER_HUNK = 12
"""A hunk that adds more lines belongs into our packages."""
SUBJECT_LENGTH = 72


def lint(root: Path) -> list[str]:
    """Return the problems of the patch set in ``root``, one sentence each; empty if none."""
    try:
        patches = PatchSet.load(root)
    except DistError as error:
        return [str(error)]
    listed = {patch.name for patch in patches.patches}
    files = {path.relative_to(root).as_posix() for path in root.rglob("*.patch")}
    unlisted = [f"{n} is not in series; list it or remove it." for n in sorted(files - listed)]
    return unlisted + lint_patches(patches)


def lint_patches(patches: PatchSet) -> list[str]:
    """Return the problems of loaded patches, as `lint` does."""
    try:
        problems = [f"{p.name}: {text}." for p in patches.patches for text in _patch_problems(p)]
        numbers = {"patches": len(patches.patches), "changed files": len(patches.blobs)}
    except DistError as error:
        return [str(error)]
    hunks = (hunk for p in patches.patches for change in p.changes for hunk in change.hunks)
    numbers["added lines"] = sum(line.startswith(b"+") for hunk in hunks for line in hunk)
    return problems + [
        f"{number} {what} are more than the budget of {BUDGET[what]} (lint.py)."
        for what, number in numbers.items()
        if number > BUDGET[what]
    ]


def _patch_problems(patch: Patch) -> Iterator[str]:
    if patch.group not in GROUPS:
        yield f"{patch.group!r} is not a group ({', '.join(GROUPS)})"
    if not re.match(r"From 0{40} Mon Sep 17 00:00:00 2001\nFrom: ", patch.head):
        yield "it does not begin as `scripts/patches export` writes it (--zero-commit)"
    subject = patch.subject
    if "\n" in subject or len(subject) > SUBJECT_LENGTH:
        yield f"the Subject is longer than {SUBJECT_LENGTH} characters"
    elif not re.match(r"[A-Z][a-z]+ .*[^.]$", subject):
        yield "the Subject is not an imperative sentence without a full stop"
    for field in FIELDS:
        if not patch.fields.get(field):
            yield f"the field {field}: is missing or empty"
    for change in patch.changes:
        for hunk in change.hunks:
            lines = [line[1:].removesuffix(b"\r") for line in hunk if line.startswith(b"+")]
            for line in lines:
                if line.endswith((b" ", b"\t")):
                    yield f"an added line of {change.path} ends with a blank: {line.decode()!r}"
            if len(lines) > LINES_PER_HUNK:
                yield (
                    f"a hunk of {change.path} adds {len(lines)} lines, more than {LINES_PER_HUNK}: "
                    "move the logic into our packages"
                )
