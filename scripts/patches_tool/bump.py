"""`bump`: carries the patches to another upstream release with git, and checks them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from _checkout import ROOT
from patches_tool import workspace
from patches_tool.gitapply import git, run, transform
from patches_tool.modes import REVIEWED, modes, reviewed
from patches_tool.patchset import SELECTIONS, UPSTREAM_PREFIX, PatchSet
from patches_tool.upstream import ARCHES, LOCK, PYTHONS, Lock, fetch, pin, release_dir
from patches_tool.wheelfile import Wheel
from patches_tool.workspace import BASE, patch_names
from sglang_lz.startup.command_line import say
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import NAME

FROM, FROM_BASE = "from", "from-upstream"
"""The branches with the old release's commits, and with that release without them."""
STATE_LOCK = ".git/sglang-lz.lock"
"""The lock of the new release, in the work tree."""
MISSING = (
    "bump needs ruff and griffelib; run scripts/format once, which installs them, then this again "
    "with PYTHON=.venv/cpu/bin/python."
)


def bump(version: str, tree: Path, how: str | None, cache: Path) -> int:
    """Carry the patches to a release of upstream, in ``tree``, new or of an earlier run.

    ``how`` is None to begin; "--dry-run" to leave out patches with conflicts, and to write nothing;
    "--continue" and "--skip" as for `git rebase`. Returns 0 if patches/``version`` has replaced the
    old folder, 1 if manual work is needed.
    """
    if not re.fullmatch(r"\d+(\.\d+)+([a-z]+\d+|\.post\d+)?", version):  # it names a folder
        raise DistError(f"{version!r} is not a release of upstream, such as 0.5.23.")
    if version == release_dir().name:
        raise DistError(f"The patches are for {NAME} {version} already.")
    is_dry = how == "--dry-run"
    if how in (None, "--dry-run"):
        old_lock = Lock.load(release_dir() / LOCK)
        here = old_lock.select()
        every = [(python, arch) for python in PYTHONS for arch in ARCHES]
        lock = pin(version, [(here.python, here.arch)] if is_dry else every, cache)
        _make_tree(tree, old_lock, lock, cache)
        stopped = _rebase(tree, "--onto", BASE, FROM_BASE)
    elif not (tree / STATE_LOCK).exists() or workspace.release(tree) != version:
        raise DistError(
            f"{tree} is not where `scripts/patches bump {version}` stopped; name it: --tree."
        )
    elif (tree / ".git/rebase-merge").exists():
        stopped = _rebase(tree, how)
    elif how == "--skip":
        raise DistError("No patch waits to be settled; use --continue.")
    else:
        stopped = None
    lock = Lock.load(tree / STATE_LOCK)
    again = f"PYTHON={sys.executable} scripts/patches bump {version} --tree {tree}"
    conflicts = 0
    while stopped:
        print(stopped)
        conflicts += 1
        if not is_dry:
            print(
                f"Edit these files in {tree} so that they hold the change that the patch makes, "
                f"and nothing else. Then\n  git -C {tree} add --all\n  {again} --continue\n"
                f"or, if this release does not need the patch,\n  {again} --skip"
            )
            return 1
        stopped = _rebase(tree, "--skip")
    _tell(tree)
    patches = workspace.export(tree)
    with Wheel(fetch(lock, lock.select(), cache)) as wheel:
        present = modes(wheel.names, wheel.read)
    wrong = list(_undefined_names(tree, patches))
    say("looking for what our code uses and the release does not have")
    to_do = list(_to_do(tree, version, present))
    print("\n".join([*wrong, *to_do]))
    if is_dry:
        return 1 if conflicts or wrong or to_do else 0
    if wrong:
        print(f"Nothing was written. Mend the commits in {tree}, then\n  {again} --continue")
        return 1
    kept = "".join(f"{mode}\n" for mode in reviewed(release_dir()) if mode in present)
    workspace.write(patches, version, {LOCK: lock.dump().encode(), REVIEWED: kept.encode()})
    print(f"patches/{version} is written. Next:\n  scripts/patches check\n  scripts/test full")
    return 0


def _make_tree(tree: Path, old_lock: Lock, lock: Lock, cache: Path) -> None:
    """Make a work tree of the release, with the old release's commits on the branch `patches`."""
    patches = PatchSet.load(release_dir())
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as folder:
        other = Path(folder) / "old"
        for one, commits, place in ((old_lock, patches, other), (lock, PatchSet(()), tree)):
            with Wheel(fetch(one, one.select(), cache)) as wheel:
                say(f"unpacking {NAME} {one.version}")
                workspace.checkout(commits, wheel.names, wheel.read, one.version, place)
        names = [f"{BASE}:{FROM_BASE}", f"patches:{FROM}"]
        run(tree, "fetch", "--quiet", "--no-tags", str(other), *names)
    run(tree, "config", "rerere.enabled", "true")  # a conflict is resolved by hand only once
    run(tree, "config", "rerere.autoUpdate", "true")
    run(tree, "reset", "--quiet", "--hard", FROM)
    (tree / STATE_LOCK).write_text(lock.dump(), "utf-8")


def _rebase(tree: Path, *how: str) -> str | None:
    """Run `git rebase`; return the patch and the files of a conflict, None if it has finished."""
    done = git(["-c", "core.editor=true", "rebase", *how], tree)
    if done.returncode == 0:
        return None
    files = run(tree, "diff", "--name-only", "--diff-filter=U").split()
    if not files:
        raise DistError(f"`git rebase` failed in {tree} ({done.stderr.decode().strip()[-200:]}).")
    (name,) = patch_names(run(tree, "log", "-1", "--format=%B", "REBASE_HEAD"))
    return f"conflict  {name}  {' '.join(files)}"


def _tell(tree: Path) -> None:
    """Print how many patches the new release gets, and the names of the others."""
    old, new = (
        patch_names(run(tree, "log", "--reverse", "--format=%B", commits))
        for commits in (f"{FROM_BASE}..{FROM}", f"{BASE}..HEAD")
    )
    left_out = [name for name in old if name not in new]
    print("\n".join([*(f"left out  {name}" for name in left_out), f"{len(new)} patches carried"]))


def _undefined_names(tree: Path, patches: PatchSet) -> Iterator[str]:
    """Yield the names that the patches use and nothing defines; DistError if a group fails."""
    read = partial(_show, tree, BASE)
    for groups in SELECTIONS:
        transform(patches.select(groups), read, workspace.release(tree))
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as folder:
        for path in patches.blobs:
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_bytes(read(path) or b"")
        before, after = (
            Counter(_ruff(root, list(patches.blobs)))
            for root in (Path(folder), tree / UPSTREAM_PREFIX)
        )
    yield from sorted(after - before)


def _ruff(root: Path, files: list[str]) -> list[str]:
    """Return ruff's findings without their places: undefined names, and what does not compile."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--exit-zero"]
    command += ["--quiet", "--output-format=concise", "--select=F821,F823", *files]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DistError(MISSING)
    return re.sub(r":\d+:\d+:", ":", done.stdout).splitlines()


def _show(tree: Path, commit: str, path: str) -> bytes | None:
    """Return a file in a commit, by its path below the wheel's root; None if it does not exist."""
    result = git(["show", f"{commit}:{UPSTREAM_PREFIX}{path}"], tree)
    return result.stdout if result.returncode == 0 else None


def _to_do(tree: Path, version: str, present: list[str]) -> Iterator[str]:
    """Yield the changes that the release requires in our code, one line each."""
    folders = (ROOT / "python", ROOT / "tests")
    sources = [path.read_text("utf-8") for of in folders for path in of.rglob("*.py")]
    yield from (f"our code: {what}" for what in missing(sources, tree, FROM_BASE, BASE))
    for mode in present:
        if mode not in reviewed(release_dir()):
            yield f"{mode} is new: review it, then add it to patches/{version}/{REVIEWED}"


def missing(sources: list[str], tree: Path, old: str, new: str) -> Iterator[str]:
    """Yield what our code uses of upstream that the commit ``old`` has and ``new`` does not.

    ``sources`` are our files' texts, ``tree`` is a repository of upstream's files.
    """
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    imported = {
        (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == NAME
        for alias in node.names
    }
    for module, name in sorted(imported):
        before, after = (_parameters(tree, commit, module, name) for commit in (old, new))
        if before is not None and after is None:
            yield f"{module} has no {name}"
        elif before is not None and after is not None:
            gone = before.keys() - after.keys()
            required = {key for key in after if after[key] and not before.get(key)}
            if gone or required:
                yield f"{module}.{name} has other parameters: {', '.join(sorted(gone | required))}"
    grep, where = ("grep", "-ohw", r"[[:alnum:]_]\+"), f"{UPSTREAM_PREFIX}{NAME}/srt"
    words, left = (
        set(git([*grep, commit, "--", where], tree).stdout.decode().split())
        for commit in (old, new)
    )
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:  # names that our own files bind may be ours
        if isinstance(getattr(node, "ctx", None), ast.Store) or hasattr(node, "name"):
            read -= {getattr(node, key, None) for key in ("name", "id", "attr")}
    for word in sorted(read & words - left):
        yield f"nothing in the release has the name {word}, which our code reads"


def _parameters(tree: Path, commit: str, module: str, name: str) -> dict[str, bool] | None:
    """Return the parameters of a module's function or class, and whether each is required.

    None if the module or the name does not exist, and {} if the name is something else.
    """
    try:
        import griffe
    except ImportError:
        raise DistError(MISSING) from None
    path = module.replace(".", "/")
    if any(_show(tree, commit, f"{path}/{name}{end}") for end in (".py", "/__init__.py")):
        return {}
    code = _show(tree, commit, f"{path}.py") or _show(tree, commit, f"{path}/__init__.py")
    if code is None:
        return None
    found = griffe.visit(module, filepath=Path(f"{path}.py"), code=code.decode()).members.get(name)
    if found is None or found.is_alias or not hasattr(found, "parameters"):
        return None if found is None else {}
    return {parameter.name: parameter.required for parameter in found.parameters}
