"""Turns patches into commits of a git work tree for editing, and commits into patches again."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .errors import DistError
from .files import replace_all
from .gitapply import Read, apply_one, git
from .lint import lint_patches
from .patchset import EXPORT_AGAIN, UPSTREAM_PREFIX, Patch, PatchSet, read_series

BASE = "upstream"
"""The tag of the first commit: upstream's files without patches."""
TITLE = "SGLang"
"""The first word of that commit's message; the second is the release."""
MARK = "Patch: "
"""The line of a commit message that names its patch file; it is not part of the patch."""

IDENTITY = {
    f"GIT_{who}_{key}": value
    for who in ("AUTHOR", "COMMITTER")
    for key, value in (
        ("NAME", "sglang-lz maintainers"),
        ("EMAIL", "maintainers@sglang-lz.invalid"),
        ("DATE", "2025-11-20T00:00:00+0000"),
    )
}
"""Every patch has the same author and date. Our own git history records who changed it and when."""

_FORMAT = [
    "format-patch",
    "-1",
    "--stdout",
    "--keep-subject",
    "--no-stat",
    "--zero-commit",
    "--full-index",
    "--no-signature",
    "--no-renames",
    "--unified=3",
    "--diff-algorithm=myers",
    "--src-prefix=a/",
    "--dst-prefix=b/",
]


def checkout(patches: PatchSet, files: Iterable[str], read: Read, version: str, tree: Path) -> None:
    """Make ``tree`` (absent or empty) a git repository of upstream's files, one commit per patch.

    ``files`` are the paths to put there, and ``read`` returns their bytes. The branch is
    ``patches``.
    """
    if tree.exists() and any(tree.iterdir()):
        raise DistError(f"{tree} is not empty; name a new folder.")
    tree.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".sglang-lz-", dir=tree.parent))
    try:
        _make(patches, files, read, version, new)
        os.replace(new, tree)
    except BaseException:
        shutil.rmtree(new)
        raise
    tree.chmod(0o755)


def _make(patches: PatchSet, files: Iterable[str], read: Read, version: str, tree: Path) -> None:
    for path in files:
        file = tree / UPSTREAM_PREFIX / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(read(path) or b"")
    _run(tree, "init", "--quiet", "--initial-branch=patches")
    _run(tree, "config", "core.autocrlf", "false")
    for name in ("NAME", "EMAIL"):  # for manual commits, if the user has not set them
        _run(tree, "config", f"user.{name.lower()}", IDENTITY[f"GIT_AUTHOR_{name}"])
    (tree / ".git/info").mkdir(exist_ok=True)
    (tree / ".git/info/exclude").write_text("__pycache__/\n", "utf-8")
    _commit(tree, f"{TITLE} {version}\n")
    _run(tree, "tag", BASE)
    for patch in patches.patches:
        apply_one(patch.name, patch.data, tree)
        _commit(tree, f"{patch.subject}\n\n{patch.body}\n\n{MARK}{patch.name}\n")


def release(tree: Path) -> str:
    """Return the upstream release of the work tree ``tree``; DistError if it is not a work tree."""
    if (tree / ".git").exists():
        title = git(["log", "-1", "--format=%s", BASE], tree)
        name, _, version = title.stdout.decode("utf-8", "replace").strip().partition(" ")
        if title.returncode == 0 and name == TITLE:
            return version
    raise DistError(f"{tree} is not a work tree made by `sglang-lz checkout`; make one first.")


def export(tree: Path) -> PatchSet:
    """Return the commits after BASE as patches.

    Changes nothing in ``tree``. Raises DistError if there are uncommitted changes or a merge, or if
    a commit has no name or the same name as another one.
    """
    release(tree)
    if _run(tree, "status", "--porcelain"):
        raise DistError(f"{tree} has uncommitted changes; commit them (git commit) and run again.")
    parent = _run(tree, "rev-parse", f"{BASE}^0")
    patches: dict[str, Patch] = {}
    for line in _run(tree, "rev-list", "--reverse", "--parents", f"{BASE}..HEAD").splitlines():
        commit, *parents = line.split()
        message = _run(tree, "log", "-1", "--format=%B", commit)
        what = f"Commit {commit[:10]} ({message.splitlines()[0]})"
        if len(parents) != 1:
            raise DistError(f"{what} is a merge; make the history linear (git rebase {BASE}).")
        names = re.findall(rf"^{MARK}(\S+)$", message, re.M)
        if len(names) != 1 or names[0] in patches:
            raise DistError(
                f"{what} needs one line `{MARK}group/name.patch` of its own in its message; add it "
                f"(git rebase -i {BASE}) and run again."
            )
        message = re.sub(rf"\n*^{MARK}\S+$", "", message, flags=re.M).strip() + "\n"
        parent = _run(tree, "commit-tree", f"{commit}^{{tree}}", "-p", parent, stdin=message)
        patches[names[0]] = Patch(names[0], git([*_FORMAT, parent], tree).stdout)
    return PatchSet(tuple(patches.values()))


def write(patches: PatchSet, root: Path) -> list[str]:
    """Make the patch folder ``root`` contain exactly these patches; return the names that changed.

    Either everything is written or nothing. Raises DistError if the patches fail the lint. The
    comments at the top of the series are kept.
    """
    problems = lint_patches(patches)
    if problems:
        problem = problems[0].replace(EXPORT_AGAIN, "").rstrip(".")
        raise DistError(f"{problem}; amend the commit, nothing was written.")
    names = [patch.name for patch in patches.patches]
    changes: dict[str, bytes | None] = {
        patch.name: patch.data
        for patch in patches.patches
        if not (root / patch.name).exists() or (root / patch.name).read_bytes() != patch.data
    }
    for file in root.rglob("*.patch"):
        if file.relative_to(root).as_posix() not in names:
            changes[file.relative_to(root).as_posix()] = None
    series = root / "series"
    if not series.exists() or read_series(root) != names:
        text = series.read_text("utf-8") if series.exists() else ""
        head = re.match(r"(?:#.*\n|\s*\n)*", text)
        changes["series"] = ((head[0] if head else "") + "".join(f"{n}\n" for n in names)).encode()
    replace_all(root, changes)
    return sorted(changes)


def diffstat(tree: Path) -> str:
    """Return ``git diff --stat`` of all patches together."""
    return _run(tree, "diff", "--stat=120,90", "--no-renames", BASE, "HEAD")


def _commit(tree: Path, message: str) -> None:
    _run(tree, "add", "--all", "--force")
    _run(tree, "commit", "--quiet", "--no-verify", "--file=-", stdin=message)


def _run(tree: Path, *args: str, stdin: str = "") -> str:
    """Run git in ``tree`` under our identity and return its output; DistError if it fails."""
    result = git(args, tree, stdin.encode(), IDENTITY)
    if result.returncode != 0:
        reason = result.stderr.decode("utf-8", "replace").strip().splitlines() or [
            "no reason given"
        ]
        raise DistError(f"`git {args[0]}` failed in {tree} ({reason[-1]}).")
    return result.stdout.decode("utf-8", "replace").rstrip("\n")
