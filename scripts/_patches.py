"""scripts/patches: builds with the patches of this checkout, and maintains them.

It needs only git, pip and the standard library, so that it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from _checkout import ROOT

sys.path.insert(0, str(ROOT / "python"))  # an installed sglang_lz may be another

from patches_tool import inplace, upstream, workspace
from patches_tool.bump import bump
from patches_tool.gitapply import run, transform
from patches_tool.lint import lint
from patches_tool.modes import REVIEWED
from patches_tool.overlay import build
from patches_tool.patchset import FLAVOUR_GROUPS, SELECTIONS, PatchSet, parse_groups
from patches_tool.upstream import LOCK, Lock, release_dir
from patches_tool.wheelfile import Wheel
from sglang_lz.startup.command_line import CommandLine
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import NAME

CACHE = ROOT / ".cache" / "upstream"
DESCRIPTION = """\
The patches on SGLang: build with them, or patch an installation; check, edit and carry them.

It needs git, and pip for what it downloads. It never imports sglang or torch."""


def main() -> int:
    """Run one command; return its exit status."""
    commands = (_build, _apply, _revert, _check, _checkout, _export, _bump)
    line = CommandLine("scripts/patches", DESCRIPTION, commands)
    add = line.add
    add("build check checkout", "--wheel", "FILE", help="upstream's wheel, already here")
    add("build check checkout", "--python", choices=upstream.PYTHONS, help="default: this Python")
    add("build check checkout", "--arch", choices=upstream.ARCHES, help="default: this machine")
    add("build check checkout bump", "--cache", "DIR", default=CACHE, help="of downloaded wheels")
    add("build apply", "--groups", "G,G", help="patch groups (default: those of the flavour)")
    add("build", "--flavour", choices=FLAVOUR_GROUPS, default="cuda", help="default: cuda")
    add("build", "--out", "DIR", default=Path("dist"), help="default: dist")
    add("apply revert", "target", "TARGET", nargs="?", help="default: this Python's sglang")
    add("checkout export", "dir", "DIR", help="the git work tree")
    add("bump", "version", "VERSION", help="upstream's release")
    add("bump", "--tree", "DIR", help="the git work tree (default: .cache/bump-VERSION)")
    how = line.pages["bump"].add_mutually_exclusive_group()
    for flag, meaning in (
        ("--dry-run", "report what would happen, and change nothing"),
        ("--continue", "go on after a conflict, which was resolved by hand"),
        ("--skip", "go on without the patch that has a conflict"),
    ):
        how.add_argument(flag, dest="how", action="store_const", const=flag, help=meaning)
    return line.run()


def _build(options: argparse.Namespace) -> int:
    """build the patched wheel from upstream's
    Apply the patches to upstream's wheel, whose sha256 must be the pinned one, and add ours.
    The same input gives the same bytes. The wheel's path is the only line on standard output."""
    groups = parse_groups(options.groups, options.flavour)
    made_from = _upstream(options)
    print(build(*made_from, groups=groups, flavour=options.flavour, out=options.out))
    return 0


def _apply(options: argparse.Namespace) -> int:
    """patch an installed sglang, or a checkout of upstream, in place
    Patch the sglang in TARGET and put our packages beside it: all of it or nothing. No command is
    installed: use `python -m sglang_lz`. PYTHON names the Python whose sglang is the default."""
    groups = parse_groups(options.groups, "cuda")
    root, seal = inplace.apply(options.target, Lock.load(release_dir() / LOCK), groups)
    print(f"{root}: {NAME} {seal.version}, {len(seal.patches)} patches applied")
    return 0


def _revert(options: argparse.Namespace) -> int:
    """take the patches off again
    Undo `apply` byte for byte: all of it or, if a file there was changed since, nothing."""
    root, seal = inplace.revert(options.target)
    print(f"{root}: {NAME} {seal.upstream}, {len(seal.patches)} patches taken off")
    return 0


def _check(options: argparse.Namespace) -> int:
    """check the patches by themselves and against upstream
    Check the series, headers and sizes of the patches, apply them to the pinned upstream, export
    them again and compare the bytes. Prints `git diff --stat` of all patches together."""
    root = release_dir()
    if problems := lint(root):
        print("\n".join(problems))
        return 1
    patches = PatchSet.load(root)
    print(f"lint: {NAME} {root.name}: {len(patches.patches)} patches are well-formed")
    _, _, file = _upstream(options)
    with Wheel(file) as wheel, tempfile.TemporaryDirectory() as folder:
        for groups in SELECTIONS:
            transform(patches.select(groups), wheel.read, root.name)
        print(f"apply: each of the {len(SELECTIONS)} selections of groups fits exactly")
        tree = Path(folder) / "tree"
        workspace.checkout(patches, list(patches.blobs), wheel.read, root.name, tree)
        exported = {patch.name: patch.data for patch in workspace.export(tree).patches}
        differing = [p.name for p in patches.patches if exported.get(p.name) != p.data]
        for name in differing:
            print(
                f"{name} is not as export writes it; run `scripts/patches checkout` and `export`."
            )
        if not differing:
            print("export: the committed bytes are those that export writes")
        print(run(tree, "diff", "--stat=120,90", "--no-renames", workspace.BASE, "HEAD"))
    return 1 if differing else 0


def _checkout(options: argparse.Namespace) -> int:
    """turn the patches into git commits, to edit them
    Make DIR a git repository: upstream's files under the tag `upstream`, and one commit for each
    patch. Edit the commits with git, then run `export`. A message needs a subject, the fields Why:,
    Upstream: and Remove-when:, and a line `Patch: group/name.patch`."""
    root = release_dir()
    patches = PatchSet.load(root)
    with Wheel(_upstream(options)[2]) as wheel:
        workspace.checkout(patches, wheel.names, wheel.read, root.name, options.dir)
    print(f"{options.dir}: {NAME} {root.name} and {len(patches.patches)} commits")
    return 0


def _export(options: argparse.Namespace) -> int:
    """write the commits back as patches
    Write the commits after the tag `upstream` in DIR to patches/. The same commits give the same
    bytes. Nothing is written if the result would not pass `check`."""
    root = release_dir()
    if (found := workspace.release(options.dir)) != root.name:
        raise DistError(f"{options.dir} is of {found}, but the patches are for {root.name}.")
    kept = {name: (root / name).read_bytes() for name in (LOCK, REVIEWED)}
    changed = workspace.write(workspace.export(options.dir), root.name, kept)
    for name in changed:
        print(f"{'wrote' if (upstream.PATCHES / name).exists() else 'deleted'} {name}")
    print(f"{len(changed)} files changed")
    return 0


def _bump(options: argparse.Namespace) -> int:
    """carry the patches to another upstream release
    Pin the wheels of VERSION, rebase the patches onto it with git, and check the result. Then
    patches/VERSION replaces the old folder. After a conflict, a message says how to continue."""
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as folder:
        tree = options.tree or CACHE.parent / f"bump-{options.version}"
        tree = Path(folder) / "tree" if options.how == "--dry-run" else tree
        return bump(options.version, tree, options.how, options.cache)


def _upstream(options: argparse.Namespace) -> tuple[Lock, upstream.WheelPin, Path]:
    """The lock, and the pin and the verified file of the wheel that the options choose."""
    lock = Lock.load(release_dir() / LOCK)
    if not options.wheel:
        pin = lock.select(options.python, options.arch)
        return lock, pin, upstream.fetch(lock, pin, options.cache)
    if options.python or options.arch:
        raise DistError(
            "--wheel already says which Python and machine; leave --python and --arch out."
        )
    for pin in lock.wheels:
        if pin.filename == options.wheel.name:
            upstream.verify(options.wheel, pin)
            return lock, pin, options.wheel
    raise DistError(
        f"{options.wheel.name} is not a pinned wheel: the patches are for {lock.describe()}."
    )


if __name__ == "__main__":
    sys.exit(main())
