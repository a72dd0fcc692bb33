"""`sglang-lz bump`: carries the patches from one upstream release to another and checks them."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import carry, workspace
from .carry import Carried
from .errors import DistError
from .fetch import download, fetch, made, pin_version, sha256
from .files import remove_empty, replace_all
from .gitapply import transform
from .lint import lint_patches
from .lock import NAME, Lock, WheelPin
from .modes import JUDGED, judged, modes
from .names import undefined
from .patchset import SELECTIONS, PatchSet
from .sources import (
    LOCK,
    PACKAGE,
    checkout_patches_dir,
    parse_release,
    release,
    release_dir,
)
from .uses import Release, Uses, missing
from .wheelfile import Wheel

Say = Callable[[str], None]
STATE, STATE_LOCK = ".git/sglang-lz-bump.json", ".git/sglang-lz-bump.lock"
"""Files in the work tree from which `--continue` resumes."""
OURS = ("python/sglang_lz", "tests")
"""The folders that contain our code that uses upstream's."""


@dataclass
class State:
    """The progress of carrying the patches.

    ``done`` maps each finished patch to how it was carried, and ``stopped`` is the patch that needs
    manual work.
    """

    done: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None

    def save(self, tree: Path) -> None:
        """Write it into the work tree."""
        (tree / STATE).write_text(json.dumps(dataclasses.asdict(self), indent=1), "utf-8")


def dry_run(version: str, cache: Path, say: Say) -> int:
    """Carry every patch that can be carried into a temporary work tree.

    Prints a table and any other problems with the release. Changes nothing.

    Returns:
        0 if there are no problems, else 1.
    """
    lock = _lock_of_one(parse_release(version), cache, say)
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as folder:
        tree = Path(folder) / "tree"
        _make_tree(tree, lock, cache, say)
        rows = []
        for name, commit in carry.commits(tree):
            rows.append(carry.carry(tree, name, commit))
            if rows[-1].status == "conflict":
                carry.abort(tree)
        print("\n".join(map(str, rows)))
        notes = [*_wrong(tree), *_to_do(lock, cache, say)]
    counts = {row.status: sum(other.status == row.status for other in rows) for row in rows}
    print(
        f"\n{release()} to {version}: " + ", ".join(f"{n} {status}" for status, n in counts.items())
    )
    for note in notes:
        print(note)
    return 1 if notes or "conflict" in counts else 0


def begin(version: str, tree: Path, cache: Path, say: Say) -> int:
    """Carry the patches to release ``version`` in the new folder ``tree``.

    Returns:
        0 if patches/``version`` has replaced the old folder, 1 if manual work is needed.
    """
    checkout_patches_dir()
    if parse_release(version) == release():
        raise DistError(f"The patches are for {NAME} {version} already.")
    lock = pin_version(version, cache, say)
    _make_tree(tree, lock, cache, say)
    (tree / STATE_LOCK).write_text(lock.dump(), "utf-8")
    state = State()
    state.save(tree)
    return _go_on(tree, state, cache, say)


def resume(version: str, tree: Path, skip: bool, cache: Path, say: Say) -> int:
    """Continue after a conflict has been resolved by hand or, with ``skip``, without that patch.

    Args:
        version: the release, which must be the one the tree was made for.
        tree: the folder in which `begin` stopped.
        skip: whether to leave the patch out, because the release does not need it.
        cache: the folder for downloaded wheels.
        say: receives a line about each action.
    """
    if not (tree / STATE).exists() or workspace.release(tree) != version:
        raise DistError(f"{tree} is not where `sglang-lz bump {version}` stopped; name it: --tree.")
    state = State(**json.loads((tree / STATE).read_text("utf-8")))
    if state.stopped:
        _settle(tree, state, state.stopped, skip)
    elif skip:
        raise DistError("No patch waits to be settled; leave --skip out.")
    return _go_on(tree, state, cache, say)


def _settle(tree: Path, state: State, name: str, skip: bool) -> None:
    if skip:
        if carry.in_progress(tree):
            carry.run(tree, "cherry-pick", "--skip")
    elif files := carry.unfinished(tree):
        raise DistError(f"{files[0]} is not settled; edit it, and `git add` it in {tree}.")
    elif carry.in_progress(tree):
        carry.finish(tree)
    if not skip and name not in carry.carried(tree):
        raise DistError(f"{name} is in no commit of {tree}; leave it out with --skip.")
    state.done[name] = "left out" if skip else "by hand"
    state.stopped = None
    state.save(tree)


def _go_on(tree: Path, state: State, cache: Path, say: Say) -> int:
    lock = Lock.load(tree / STATE_LOCK)
    for name, commit in carry.commits(tree):
        if name in state.done:
            continue
        row = carry.carry(tree, name, commit)
        print(row, flush=True)
        if row.status == "conflict":
            state.stopped = name
            state.save(tree)
            _tell_conflict(tree, row, lock.version)
            return 1
        state.done[name] = row.status
        state.save(tree)
    if wrong := list(_wrong(tree)):
        print("\n".join(wrong))
        print(
            f"Nothing was written. Mend the commits in {tree} (git commit --amend, git rebase -i "
            f"{workspace.BASE}), then\n  sglang-lz bump {lock.version} --continue --tree {tree}"
        )
        return 1
    to_do = list(_to_do(lock, cache, say))
    _write(tree, lock, cache, say)
    print("\n".join(to_do))
    print(
        f"patches/{lock.version} is written{': see to the lines above' if to_do else ''}. Next:\n"
        f"  sglang-lz check\n  scripts/test full"
    )
    return 0


def _tell_conflict(tree: Path, row: Carried, version: str) -> None:
    files = "".join(f"  {file}\n" for file in row.places)
    print(
        f"\n{row.name} conflicts in {tree}:\n{files}"
        "Edit these files so that they hold the change that the patch makes, and nothing else. "
        "Then\n"
        f"  git -C {tree} add --all\n"
        f"  sglang-lz bump {version} --continue --tree {tree}\n"
        "or, where this release does not need the patch,\n"
        f"  sglang-lz bump {version} --continue --tree {tree} --skip"
    )


def _lock_of_one(version: str, cache: Path, say: Say) -> Lock:
    """A lock for the one wheel that is examined, of a release that may not be pinned yet."""
    here = Lock.load(release_dir() / LOCK).select()
    with tempfile.TemporaryDirectory(prefix="sglang-lz-", dir=made(cache)) as folder:
        say(f"fetching {NAME} {version}")
        file = download(version, here.python, here.arch, Path(folder))
        pin = WheelPin(here.python, here.arch, file.name, sha256(file))
        os.replace(file, cache / file.name)
    return Lock(version, 1, (pin,))


def _make_tree(tree: Path, lock: Lock, cache: Path, say: Say) -> None:
    """Make an unpatched work tree of the release, with the old release's commits on a branch."""
    old_lock = Lock.load(release_dir() / LOCK)
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as folder:
        other = Path(folder) / "old"
        patches = PatchSet.load(release_dir())
        for one, commits, place in ((old_lock, patches, other), (lock, PatchSet(()), tree)):
            with Wheel(fetch(one, one.select(), cache, say)) as wheel:
                say(f"unpacking {NAME} {one.version}")
                files = [name for name in wheel.names if name.endswith(".py")]
                workspace.checkout(commits, files, wheel.read, one.version, place)
        names = [f"{workspace.BASE}:{carry.FROM_UPSTREAM}", f"patches:{carry.FROM}"]
        carry.run(tree, "fetch", "--quiet", "--no-tags", str(other), *names)


def _wrong(tree: Path) -> Iterator[str]:
    """Yield the problems with the commits of a work tree, one line each."""
    for file in carry.run(tree, "diff", "--name-only", workspace.BASE, "HEAD").splitlines():
        before = carry.run(tree, "show", f"{workspace.BASE}:{file}")
        try:
            names = undefined((tree / file).read_text("utf-8")) - undefined(before)
        except SyntaxError as error:
            yield f"{file}: does not compile (line {error.lineno})"
            continue
        for name in sorted(names):
            function, _, word = name.partition(": ")
            yield f"{file}: {word} is not defined where {function} uses it"
    patches = workspace.export(tree)
    problems = lint_patches(patches)
    yield from problems
    for groups in () if problems else SELECTIONS:
        selected = patches.select(groups)
        transform(selected, _read_upstream(tree), workspace.release(tree))


def _read_upstream(tree: Path) -> Callable[[str], bytes | None]:
    return lambda path: carry.show(tree, workspace.BASE, path)


def _to_do(lock: Lock, cache: Path, say: Say) -> Iterator[str]:
    """Yield the changes that the release requires in our code, one line each."""
    say("looking for what our code uses and the release has not")
    uses = Uses()
    root = PACKAGE.parent.parent
    for folder in OURS:
        for path in sorted((root / folder).rglob("*.py")):
            uses.read(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    old_lock = Lock.load(release_dir() / LOCK)
    with (
        Wheel(fetch(lock, lock.select(), cache, say)) as wheel,
        Wheel(fetch(old_lock, old_lock.select(), cache, say)) as old_wheel,
    ):
        here, there = Release(wheel.names, wheel.read), Release(old_wheel.names, old_wheel.read)
        yield from (f"our code: {problem}" for problem in missing(uses, here, there))
        known = set(judged(release_dir()))
        for mode in modes(wheel.names, wheel.read):
            if mode not in known:
                yield f"{mode} is new: judge it, then add it to patches/{lock.version}/{JUDGED}"


def _write(tree: Path, lock: Lock, cache: Path, say: Say) -> None:
    """Replace the folder of the old release by patches/VERSION, atomically."""
    old, patches = release_dir(), workspace.export(tree)
    with Wheel(fetch(lock, lock.select(), cache, say)) as wheel:
        present = set(modes(wheel.names, wheel.read))
    files = {patch.name: patch.data for patch in patches.patches}
    files["series"] = "".join(f"{patch.name}\n" for patch in patches.patches).encode()
    files[LOCK] = lock.dump().encode()
    kept = [mode for mode in judged(old) if mode in present]
    files[JUDGED] = "".join(f"{mode}\n" for mode in kept).encode()
    root = checkout_patches_dir()
    changes: dict[str, bytes | None] = {
        path.relative_to(root).as_posix(): None for path in old.rglob("*") if path.is_file()
    }
    replace_all(root, changes | {f"{lock.version}/{name}": data for name, data in files.items()})
    remove_empty(old)
