"""Parses patches: the series, each patch's header, and the files it changes with their blob ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .errors import DistError

LZ_GROUPS = ("sampling", "requests", "guard", "proper", "server", "bench")
"""The groups that make the LZ penalty, and let upstream's benchmarks ask for it; all or none."""
FIXES = "fixes"
"""The group that repairs upstream, for requests without a penalty too."""
GROUPS = (*LZ_GROUPS, FIXES, "cpu")
FLAVOUR_GROUPS = {"cuda": (*LZ_GROUPS, FIXES), "cpu": GROUPS}
SELECTIONS = (FLAVOUR_GROUPS["cuda"], GROUPS, LZ_GROUPS, (*LZ_GROUPS, "cpu"), ("cpu",))
"""What ``--groups`` can choose; see `parse_groups`."""
FIELDS = ("Why", "Upstream", "Remove-when")
"""The fields of every patch header, below its subject."""
UPSTREAM_PREFIX = "python/"
"""Upstream's repository keeps at ``python/`` what its wheel keeps at the root."""

EXPORT_AGAIN = "; export it again with `sglang-lz export`"
"""Advice for a patch file that differs from what `export` writes."""

_NAME = re.compile(r"[a-z0-9-]+/[a-z0-9-]+\.patch")
_INDEX = re.compile(rb"index ([0-9a-f]{40})\.\.([0-9a-f]{40}) 100(?:644|755)")
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True)
class FileChange:
    """The changes that one patch makes to one file.

    ``path`` is relative to the wheel's root (``sglang/...``). ``old_blob`` and ``new_blob`` are git
    blob ids (40 hex digits). ``hunks`` holds the changed lines of each hunk, without line endings
    but with the leading ``+`` or ``-``.
    """

    path: str
    old_blob: str
    new_blob: str
    hunks: tuple[tuple[bytes, ...], ...]

    @property
    def added(self) -> int:
        """The number of added lines."""
        return sum(line.startswith(b"+") for lines in self.hunks for line in lines)


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

    @cached_property
    def subject(self) -> str:
        """The Subject line, empty if there is none."""
        match = re.search(r"^Subject: (.*(?:\n[ \t].*)*)", self.head, re.M)
        return match[1] if match else ""

    @cached_property
    def body(self) -> str:
        """The commit message below the subject, stripped."""
        return self.head.partition("\n\n")[2].strip()

    @cached_property
    def fields(self) -> dict[str, str]:
        """The header fields (FIELDS); lines that begin with a space continue the previous field."""
        pairs = re.findall(r"^([A-Z][A-Za-z-]*):[ \t]*(.*(?:\n[ \t].*)*)", self.body, re.M)
        return {key: " ".join(value.split()) for key, value in pairs}

    @property
    def changed_lines(self) -> list[bytes]:
        """All added and removed lines of all files, in the patch's order."""
        return [line for change in self.changes for lines in change.hunks for line in lines]

    @cached_property
    def changes(self) -> tuple[FileChange, ...]:
        """The changed files in the patch's order; DistError if the diff is not in our format."""
        return tuple(_changes(self))


@dataclass(frozen=True)
class PatchSet:
    """An ordered collection of patches."""

    patches: tuple[Patch, ...]

    @classmethod
    def load(cls, root: Path) -> PatchSet:
        """Read ``root``/series and the patches it lists; DistError if one is missing."""
        patches = []
        for name in read_series(root):
            try:
                patches.append(Patch(name, (root / name).read_bytes()))
            except FileNotFoundError:
                raise DistError(
                    f"{root / 'series'} lists {name}, which does not exist; restore the patch or "
                    "remove the line."
                ) from None
        return cls(tuple(patches))

    def select(self, groups: Iterable[str]) -> PatchSet:
        """Return the patches of some groups, in order.

        Raises DistError if a selected patch builds on one that is left out, because both change the
        same file and the blob ids would then be wrong.
        """
        wanted = set(groups)
        left_out: dict[str, str] = {}
        for patch in self.patches:
            for change in patch.changes:
                if patch.group not in wanted:
                    left_out[change.path] = patch.name
                elif change.path in left_out:
                    raise DistError(
                        f"{patch.name} builds on {left_out[change.path]} (both change "
                        f"{change.path}), which the chosen groups leave out; choose both groups."
                    )
        return PatchSet(tuple(p for p in self.patches if p.group in wanted))

    @cached_property
    def blobs(self) -> dict[str, tuple[str, str]]:
        """For each changed file, the blob ids before the first patch and after the last one.

        Raises DistError if a patch does not start where the previous one on that file ended.
        """
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


def read_series(root: Path) -> list[str]:
    """Return the patch names of ``root``/series; DistError if it is missing or malformed."""
    path = root / "series"
    try:
        return parse_series(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise DistError(f"{path} is missing; restore it with git.") from None


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
    """Return the groups given as the text of ``--groups``, by default those of the flavour.

    Raises DistError for an unknown group, for only some of LZ_GROUPS (there is no version of the
    penalty with only some of them), and for FIXES without LZ_GROUPS (both change the same files).
    """
    if text is None:
        return FLAVOUR_GROUPS[flavour]
    groups = [part for part in text.split(",") if part]
    for group in groups:
        if group not in GROUPS:
            raise DistError(f"{group!r} is not a patch group; the groups are {', '.join(GROUPS)}.")
    missing = [group for group in LZ_GROUPS if group not in groups]
    if 0 < len(missing) < len(LZ_GROUPS):
        raise DistError(
            f"--groups must name all of {', '.join(LZ_GROUPS)} or none; {missing[0]} is left out."
        )
    if FIXES in groups and missing:
        raise DistError(f"--groups with {FIXES} must name {', '.join(LZ_GROUPS)} too.")
    return tuple(group for group in GROUPS if group in groups)


def _changes(patch: Patch) -> Iterator[FileChange]:
    """Parse the diffs strictly: only changes to existing files, and hunks of the stated length."""

    def expect(ok: object, what: str) -> None:
        if not ok:
            raise DistError(f"{patch.name}: {what}{EXPORT_AGAIN}.")

    lines = patch.data.split(b"\n")
    expect(lines.pop() == b"", "it does not end with a line end")
    while lines and not lines[0].startswith(b"diff --git "):
        del lines[0]
    expect(lines, "there is no diff in it")
    lines.reverse()  # so that lines.pop() returns the next line
    while lines:
        words = lines.pop().decode("utf-8", "replace")
        match = re.fullmatch(rf"diff --git a/({UPSTREAM_PREFIX}sglang/\S+\.py) b/(\S+)", words)
        expect(match and match[1] == match[2], f"{words!r} is not a change of one .py of sglang")
        assert match
        path = match[1]
        index = _INDEX.fullmatch(lines.pop() if lines else b"")
        expect(index, f"{path} is not just modified, or its index line lacks full blob ids")
        assert index
        names = [lines.pop() for _ in range(2) if lines]
        expect(names == [b"--- a/" + path.encode(), b"+++ b/" + path.encode()], "bad file names")
        hunks = []
        while lines and (hunk := _HUNK.match(lines[-1])):
            lines.pop()
            hunks.append(_hunk(lines, int(hunk[1] or 1), int(hunk[2] or 1), expect))
        expect(hunks, f"{path} has no hunk that parses")
        path = path.removeprefix(UPSTREAM_PREFIX)
        yield FileChange(path, index[1].decode(), index[2].decode(), tuple(hunks))


def _hunk(
    lines: list[bytes], old: int, new: int, expect: Callable[[object, str], None]
) -> tuple[bytes, ...]:
    """Pop a hunk of ``old`` and ``new`` lines from the reversed ``lines``; return its changes."""
    changed = []
    while old > 0 or new > 0:
        kind, line = (lines[-1][:1], lines.pop()[1:]) if lines else (b"", b"")
        expect(kind in (b" ", b"-", b"+", b"\\") and kind, "a hunk is shorter than it claims")
        old -= kind in (b" ", b"-")
        new -= kind in (b" ", b"+")
        if kind in (b"+", b"-"):
            changed.append(kind + line)
    expect((old, new) == (0, 0), "a hunk is longer than it claims")
    if lines and lines[-1].startswith(b"\\"):
        lines.pop()
    return tuple(changed)
