"""Parses patches: the series, each patch's header, and the files it changes with their blob ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sglang_lz.startup.errors import DistError

LZ_GROUPS = ("sampling", "requests", "guard", "proper", "server")
"""The groups that make the LZ penalty; all or none."""
GROUPS = (*LZ_GROUPS, "fixes", "cpu")
FLAVOUR_GROUPS = {"cuda": (*LZ_GROUPS, "fixes"), "cpu": GROUPS}
SELECTIONS = (FLAVOUR_GROUPS["cuda"], GROUPS, LZ_GROUPS, (*LZ_GROUPS, "cpu"), ("cpu",))
"""What ``--groups`` can choose; see `parse_groups`."""
FIELDS = ("Why", "Upstream", "Remove-when")
"""The fields of every patch header, below its subject."""
UPSTREAM_PREFIX = "python/"
"""Upstream's repository keeps at ``python/`` what its wheel keeps at the root."""

EXPORT_AGAIN = "; export it again with `scripts/patches export`"
"""Advice for a patch file that differs from what `export` writes."""

_NAME = re.compile(r"[a-z0-9-]+/[a-z0-9-]+\.patch")
_DIFF = re.compile(
    rb"diff --git a/python/(sglang/\S+\.py) b/python/\1\n"
    rb"index ([0-9a-f]{40})\.\.([0-9a-f]{40}) 100(?:644|755)\n"
    rb"--- a/python/\1\n\+\+\+ b/python/\1\n(?=@@ )"
)


@dataclass(frozen=True)
class FileChange:
    """The changes that one patch makes to one file.

    ``path`` is relative to the wheel's root (``sglang/...``), and the blobs are git's ids (40 hex
    digits). ``hunks`` holds each hunk's changed lines, with the leading ``+`` or ``-``.
    """

    path: str
    old_blob: str
    new_blob: str
    hunks: tuple[tuple[bytes, ...], ...]


@dataclass(frozen=True)
class Patch:
    """One ``git format-patch`` file; ``name`` is its path in the set, ``group/name.patch``."""

    name: str
    data: bytes

    @property
    def group(self) -> str:
        """The folder the patch is in."""
        return self.name.split("/")[0]

    @property
    def head(self) -> str:
        """Everything before the first diff, as text."""
        return self.data.split(b"\ndiff --git ", 1)[0].decode("utf-8", "replace")

    @property
    def subject(self) -> str:
        """The Subject line, empty if there is none."""
        match = re.search(r"^Subject: (.*(?:\n[ \t].*)*)", self.head, re.M)
        return match[1] if match else ""

    @property
    def body(self) -> str:
        """The commit message below the subject, stripped."""
        return self.head.partition("\n\n")[2].strip()

    @property
    def fields(self) -> dict[str, str]:
        """The header fields (FIELDS); lines that begin with a space continue the previous field."""
        pairs = re.findall(r"^([A-Z][A-Za-z-]*):[ \t]*(.*(?:\n[ \t].*)*)", self.body, re.M)
        return {key: " ".join(value.split()) for key, value in pairs}

    @cached_property
    def changes(self) -> tuple[FileChange, ...]:
        """The changed files in the patch's order; DistError if the diff is not in our format."""
        found = []
        for diff in re.split(rb"^(?=diff --git )", self.data, flags=re.M)[1:]:
            match = _DIFF.match(diff)
            if not match:
                line = diff.partition(b"\n")[0].decode("utf-8", "replace")
                raise DistError(
                    f"{self.name}: {line!r} does not just modify one .py of sglang, or lacks full "
                    f"blob ids{EXPORT_AGAIN}."
                )
            hunks = re.split(rb"^@@ .*\n", diff[match.end() :], flags=re.M)[1:]
            changed = tuple(tuple(re.findall(rb"^[+-].*", hunk, re.M)) for hunk in hunks)
            path, old, new = (text.decode() for text in match.groups())
            found.append(FileChange(path, old, new, changed))
        if not found:
            raise DistError(f"{self.name}: there is no diff in it{EXPORT_AGAIN}.")
        return tuple(found)


@dataclass(frozen=True)
class PatchSet:
    """An ordered collection of patches."""

    patches: tuple[Patch, ...]

    @classmethod
    def load(cls, root: Path) -> PatchSet:
        """Read ``root``/series and the patches it lists; DistError if one is missing."""
        try:
            names = parse_series((root / "series").read_bytes(), f"{root}/series")
            return cls(tuple(Patch(name, (root / name).read_bytes()) for name in names))
        except FileNotFoundError as error:
            raise DistError(f"{error.filename} is missing; restore it with git.") from None

    def select(self, groups: Iterable[str]) -> PatchSet:
        """Return the patches of some groups, in order."""
        return PatchSet(tuple(patch for patch in self.patches if patch.group in groups))

    @cached_property
    def blobs(self) -> dict[str, tuple[str, str]]:
        """For each changed file, the blob ids before the first patch and after the last one."""
        blobs: dict[str, tuple[str, str]] = {}
        for patch in self.patches:
            for change in patch.changes:
                first, last = blobs.get(change.path, (change.old_blob, change.old_blob))
                if last != change.old_blob:
                    raise DistError(
                        f"{patch.name} does not start at the {change.path} that the patches before "
                        f"it leave{EXPORT_AGAIN}."
                    )
                blobs[change.path] = (first, change.new_blob)
        return blobs


def parse_series(text: bytes, where: str) -> list[str]:
    """Return the patch names of a series, which may contain blank lines and # comments."""
    lines = (line.strip() for line in text.decode("utf-8", "replace").splitlines())
    names = [line for line in lines if line and not line.startswith("#")]
    for name in names:
        if not _NAME.fullmatch(name):
            raise DistError(f"{where}: {name!r} is not group/name.patch in a-z, 0-9 and hyphens.")
        if names.count(name) > 1:
            raise DistError(f"{where} lists {name} twice; remove one line.")
    return names


def parse_groups(text: str | None, flavour: str) -> tuple[str, ...]:
    """Return the groups of `SELECTIONS` that ``--groups`` gives, by default those of the flavour.

    Raises DistError for others, because the patches of one group may need those of another.
    """
    groups = set(text.split(",")) if text else FLAVOUR_GROUPS[flavour]
    for selection in SELECTIONS:
        if set(selection) == set(groups):
            return selection
    choices = "; ".join(",".join(selection) for selection in SELECTIONS)
    raise DistError(f"--groups is {text!r}; it must be one of {choices}.")
