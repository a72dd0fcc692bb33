"""The command line, ``sglang-lz`` or ``python -m sglang_lz``; the manual is in manual.py."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import doctor, inplace, workspace
from .build import build
from .errors import DistError
from .fetch import fetch, pin_version, verify
from .files import replace_all
from .lint import lint
from .lock import ARCHES, NAME, PYTHONS, Lock, WheelPin
from .manual import MAIN, PAGES, STATUS
from .patchset import FLAVOUR_GROUPS, PatchSet, parse_groups
from .serve import serve
from .sources import LOCK, checkout_patches_dir, patches_dir
from .wheelfile import Wheel


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status (see STATUS in manual.py)."""
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    if options.command == "serve":
        options.arguments = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # unwind, so that nothing is left behind
    try:
        return int(COMMANDS[options.command](options))
    except DistError as error:
        print(f"sglang-lz: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sglang-lz: {error.filename} cannot be used ({error.strerror}).", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sglang-lz: interrupted, nothing was changed.", file=sys.stderr)
        return 130


def _build(options: argparse.Namespace) -> int:
    lock = _lock()
    wheel = build(
        lock=lock,
        pin=_pin(lock, options),
        wheel=options.wheel,
        groups=parse_groups(options.groups, options.flavour),
        flavour=options.flavour,
        out=options.out,
        cache=options.cache,
        say=_say,
    )
    print(wheel)
    return 0


def _apply(options: argparse.Namespace) -> int:
    groups = parse_groups(options.groups, "cuda")
    root, seal = inplace.apply(options.target, _lock(), groups)
    print(f"{root}: {NAME} {seal.version}, {len(seal.patches)} patches applied")
    return 0


def _revert(options: argparse.Namespace) -> int:
    root, seal = inplace.revert(options.target)
    print(f"{root}: {NAME} {seal.upstream}, {len(seal.patches)} patches taken off")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    checks = doctor.examine_wheel(options.wheel) if options.wheel else doctor.examine_installed()
    for check in checks:
        print(check)
    return 0 if all(check.ok for check in checks) else 1


def _lint(_: argparse.Namespace) -> int:
    problems = lint(patches_dir())
    for problem in problems:
        print(problem)
    if not problems:
        print(f"lint: {len(PatchSet.load(patches_dir()).patches)} patches are well-formed")
    return 1 if problems else 0


def _check(options: argparse.Namespace) -> int:
    if status := _lint(options):
        return status
    patches = PatchSet.load(patches_dir())
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as folder:
        tree = Path(folder) / "tree"
        _checkout_tree(options, tree, patches, list(patches.blobs))
        exported = {patch.name: patch.data for patch in workspace.export(tree).patches}
        differing = [p.name for p in patches.patches if exported.get(p.name) != p.data]
        print("apply: every patch fits exactly, on every blob id")
        for name in differing:
            print(f"{name} is not as export writes it; run `sglang-lz checkout` and `export`.")
        if not differing:
            print("export: the committed bytes are those that export writes")
        print(workspace.diffstat(tree))
    return 1 if differing else 0


def _checkout(options: argparse.Namespace) -> int:
    patches = PatchSet(()) if options.no_patches else PatchSet.load(patches_dir())
    _checkout_tree(options, options.dir, patches, None)
    print(f"{options.dir}: {NAME} {_lock().version} and {len(patches.patches)} commits")
    return 0


def _checkout_tree(
    options: argparse.Namespace, tree: Path, patches: PatchSet, names: list[str] | None
) -> None:
    """Check out the named files, by default all .py files of the pinned wheel."""
    lock = _lock()
    pin = _pin(lock, options)
    if options.wheel:
        verify(options.wheel, pin)
    with Wheel(options.wheel or fetch(lock, pin, options.cache, _say)) as wheel:
        every = [name for name in wheel.names if name.endswith(".py")]
        workspace.checkout(patches, names or every, wheel.read, lock.version, tree)


def _export(options: argparse.Namespace) -> int:
    root = checkout_patches_dir()
    changed = workspace.write(workspace.export(options.dir), root)
    for name in changed:
        print(f"wrote {name}")
    print(f"{len(changed)} files changed")
    return 0


def _pin_command(options: argparse.Namespace) -> int:
    root = checkout_patches_dir()
    old = Lock.load(root / LOCK) if (root / LOCK).exists() else None
    lock = pin_version(options.version, old, options.cache, _say)
    replace_all(root, {LOCK: lock.dump().encode()})
    print(f"pinned {len(lock.wheels)} wheels of {NAME} {lock.version}, revision {lock.revision}")
    return 0


def _serve(options: argparse.Namespace) -> int:
    serve(options.arguments)


def _loops(options: argparse.Namespace) -> int:
    try:
        from .. import loops  # the only command that needs more than the standard library
    except ImportError as error:
        raise DistError(f"loops needs numpy and numba, which SGLang needs too ({error}).") from None
    names = ("max_pattern_size", "min_pattern_size", "min_count")
    asked = {name: getattr(options, name) for name in names}
    try:
        print(loops.run(options.files, asked, as_json=options.json))
    except ValueError as error:
        raise DistError(str(error)) from None
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "build": _build,
    "apply": _apply,
    "revert": _revert,
    "doctor": _doctor,
    "serve": _serve,
    "loops": _loops,
    "lint": _lint,
    "check": _check,
    "checkout": _checkout,
    "export": _export,
    "pin": _pin_command,
}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _lock() -> Lock:
    return Lock.load(patches_dir() / LOCK)


def _pin(lock: Lock, options: argparse.Namespace) -> WheelPin:
    if not options.wheel:
        return lock.select(options.python, options.arch)
    if options.python or options.arch:
        raise DistError(
            "--wheel already says which Python and machine; leave --python and --arch out."
        )
    return lock.by_filename(options.wheel.name)


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "sglang-lz", description=MAIN, epilog=STATUS, formatter_class=plain
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    pages = {
        name: commands.add_parser(
            name,
            help=line,
            description=page,
            epilog=f"{STATUS}\n\nexamples:\n{examples}",
            formatter_class=plain,
            allow_abbrev=name != "serve",
        )
        for name, (line, page, examples) in PAGES.items()
    }
    for name in ("build", "check", "checkout"):
        page = pages[name]
        page.add_argument(
            "--python", choices=PYTHONS, help="of which wheel (default: this Python's)"
        )
        page.add_argument("--arch", choices=ARCHES, help="of which wheel (default: this machine's)")
        page.add_argument(
            "--wheel", type=Path, metavar="FILE", help="upstream's wheel, already here"
        )
    for name in ("build", "check", "checkout", "pin"):
        pages[name].add_argument(
            "--cache",
            type=Path,
            default=Path("dist/upstream"),
            metavar="DIR",
            help="where downloaded wheels stay (default: dist/upstream)",
        )
    for name in ("build", "apply"):
        pages[name].add_argument(
            "--groups",
            metavar="G,G",
            help="patch groups; the penalty's together or not at all (default: "
            + ("the flavour's)" if name == "build" else f"{','.join(FLAVOUR_GROUPS['cuda'])})"),
        )
    for name in ("apply", "revert"):
        pages[name].add_argument(
            "target", nargs="?", type=Path, metavar="TARGET", help="(default: this Python's sglang)"
        )
    pages["build"].add_argument(
        "--flavour", choices=FLAVOUR_GROUPS, default="cuda", help="(default: cuda)"
    )
    pages["build"].add_argument(
        "--out",
        type=Path,
        default=Path("dist"),
        metavar="DIR",
        help="where the built wheel goes (default: dist)",
    )
    pages["doctor"].add_argument(
        "--wheel", type=Path, metavar="FILE", help="check this wheel, not what is installed"
    )
    pages["checkout"].add_argument(
        "--no-patches", action="store_true", help="only upstream's files, no commits on top"
    )
    for name in ("checkout", "export"):
        pages[name].add_argument("dir", type=Path, metavar="DIR", help="the git work tree")
    for name, meaning in (
        ("max-pattern-size", "the longest pattern, in tokens (default: 512)"),
        ("min-pattern-size", "the shortest (default: 1)"),
        ("min-count", "copies in a row that are a loop (default: 20)"),
    ):
        pages["loops"].add_argument(f"--{name}", type=int, metavar="N", help=meaning)
    pages["loops"].add_argument("--json", action="store_true", help="print JSON")
    pages["loops"].add_argument("files", nargs="+", metavar="FILE", help="- for standard input")
    pages["pin"].add_argument("version", metavar="VERSION", help="upstream's release")
    return parser
