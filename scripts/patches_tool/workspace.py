"""Turns patches into commits of a git work tree for editing, and commits into patches again."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from patches_tool.files import remove_empty, replace_all
from patches_tool.gitapply import IDENTITY, apply_one, git, run
from patches_tool.lint import lint_patches
from patches_tool.patchset import EXPORT_AGAIN, UPSTREAM_PREFIX, Patch, PatchSet
from patches_tool.upstream import PATCHES
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import Read

BASE = "upstream"
"""The tag of the first commit: upstream's files without patches."""
TITLE = "SGLang"
"""The first word of that commit's message; the second is the release."""
MARK = "Patch: "
"""The line of a commit message that names its patch file; it is not part of the patch."""

_FORMAT = ("--keep-subject", "--no-stat", "--zero-commit", "--full-index", "--no-signature")


def checkout(patches: PatchSet, files: Iterable[str], read: Read, version: str, tree: Path) -> None:
    """Make ``tree`` (absent or empty) a git repository of upstream's Python files.

    The branch ``patches`` gets one commit per patch.
    """
    if tree.exists() and any(tree.iterdir()):
        raise DistError(f"{tree} is not empty; name a new folder.")
    tree.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".sglang-lz-", dir=tree.parent))
    try:
        for path in files:
            if path.endswith(".py"):
                file = new / UPSTREAM_PREFIX / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(read(path) or b"")
        run(new, "init", "--quiet", "--initial-branch=patches")
        run(new, "config", "core.autocrlf", "false")
        for name in ("NAME", "EMAIL"):  # for manual commits, if the user has not set them
            run(new, "config", f"user.{name.lower()}", IDENTITY[f"GIT_AUTHOR_{name}"])
        (new / ".git/info").mkdir(exist_ok=True)
        (new / ".git/info/exclude").write_text("__pycache__/\n", "utf-8")
        _commit(new, f"{TITLE} {version}\n")
        run(new, "tag", BASE)
        for patch in patches.patches:
            apply_one(patch.name, patch.data, new)
            _commit(new, f"{patch.subject}\n\n{patch.body}\n\n{MARK}{patch.name}\n")
        os.replace(new, tree)
    except BaseException:
        shutil.rmtree(new)
        raise
    tree.chmod(0o755)


def release(tree: Path) -> str:
    """Return the upstream release of the work tree ``tree``; DistError if it is not a work tree."""
    if (tree / ".git").exists():
        title = git(["log", "-1", "--format=%s", BASE], tree)
        name, _, version = title.stdout.decode("utf-8", "replace").strip().partition(" ")
        if title.returncode == 0 and name == TITLE:
            return version
    raise DistError(
        f"{tree} is not a work tree made by `scripts/patches checkout`; make one first."
    )


def export(tree: Path) -> PatchSet:
    """Return the commits after BASE as patches; nothing in ``tree`` changes.

    Raises DistError for uncommitted changes, a merge, a commit without a name of its own, or
    patches that fail the lint.
    """
    release(tree)
    if run(tree, "status", "--porcelain"):
        raise DistError(f"{tree} has uncommitted changes; commit them (git commit) and run again.")
    parent = run(tree, "rev-parse", f"{BASE}^0")
    command = ["format-patch", "-1", "--stdout", "--no-renames", *_FORMAT]
    patches: dict[str, Patch] = {}
    for line in run(tree, "rev-list", "--reverse", "--parents", f"{BASE}..HEAD").splitlines():
        commit, *parents = line.split()
        message = run(tree, "log", "-1", "--format=%B", commit)
        what = f"Commit {commit[:10]} ({message.splitlines()[0]})"
        if len(parents) != 1:
            raise DistError(f"{what} is a merge; make the history linear (git rebase {BASE}).")
        names = patch_names(message)
        if len(names) != 1 or names[0] in patches:
            raise DistError(
                f"{what} needs one line `{MARK}group/name.patch` of its own in its message; add it "
                f"(git rebase -i {BASE}) and run again."
            )
        message = re.sub(rf"\n*^{MARK}\S+$", "", message, flags=re.M).strip() + "\n"
        parent = run(tree, "commit-tree", f"{commit}^{{tree}}", "-p", parent, stdin=message)
        patches[names[0]] = Patch(names[0], git([*command, parent], tree).stdout)
    exported = PatchSet(tuple(patches.values()))
    if problems := lint_patches(exported):
        problem = problems[0].replace(EXPORT_AGAIN, "").rstrip(".")
        raise DistError(f"{problem}; amend the commit, nothing was written.")
    return exported


def patch_names(messages: str) -> list[str]:
    """Return the names of the patches in the messages of commits."""
    return re.findall(rf"^{MARK}(\S+)$", messages, re.M)


def write(patches: PatchSet, version: str, beside: Mapping[str, bytes]) -> list[str]:
    """Make patches/ contain only a folder of these patches and of other files (name to bytes).

    Returns the paths that changed.
    """
    paths = (path for path in PATCHES.rglob("*") if path.is_file())
    old = {path.relative_to(PATCHES).as_posix(): path.read_bytes() for path in paths}
    files = {patch.name: patch.data for patch in patches.patches}
    files = {"series": "".join(f"{name}\n" for name in files).encode(), **files, **beside}
    new = {f"{version}/{name}": data for name, data in files.items()}
    changes: dict[str, bytes | None] = dict.fromkeys(old.keys() - new.keys())
    changes |= {path: data for path, data in new.items() if old.get(path) != data}
    replace_all(PATCHES, changes)
    remove_empty(PATCHES)
    return sorted(changes)


def _commit(tree: Path, message: str) -> None:
    run(tree, "add", "--all", "--force")
    run(tree, "commit", "--quiet", "--no-verify", "--file=-", stdin=message)
