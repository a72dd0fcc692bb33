"""The command line, ``sglang-lz`` or ``python -m sglang_lz``; the manual is in manual.py."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from . import bump, doctor, inplace, workspace
from .build import build
from .errors import DistError
from .fetch import fetch, verify
from .gitapply import transform
from .lint import lint
from .lock import ARCHES, NAME, PYTHONS, Lock, WheelPin
from .manual import MAIN, PAGES, STATUS
from .patchset import FLAVOUR_GROUPS, SELECTIONS, PatchSet, parse_groups
from .serve import DEFAULT_SERVER, PLAYGROUND_PORT, serve
from .sources import (
    LOCK,
    checkout_patches_dir,
    default_cache,
    release,
    release_dir,
)
from .verify import examine_files
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
    lock, pin = _pin(options)
    wheel = build(
        lock=lock,
        pin=pin,
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
    return _report(
        doctor.examine_wheel(options.wheel) if options.wheel else doctor.examine_installed()
    )


def _verify(options: argparse.Namespace) -> int:
    return _report(examine_files(options.files, options.public_key))


def _lint(_: argparse.Namespace) -> int:
    problems = lint(release_dir())
    for problem in problems:
        print(problem)
    if not problems:
        count = len(PatchSet.load(release_dir()).patches)
        print(f"lint: {NAME} {release()}: {count} patches are well-formed")
    return 1 if problems else 0


def _check(options: argparse.Namespace) -> int:
    if status := _lint(options):
        return status
    version = release()
    patches = PatchSet.load(release_dir())
    with _upstream_wheel(options) as wheel, tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        workspace.checkout(patches, list(patches.blobs), wheel.read, version, tree)
        exported = {patch.name: patch.data for patch in workspace.export(tree).patches}
        differing = [p.name for p in patches.patches if exported.get(p.name) != p.data]
        print(f"apply: {NAME} {version}: every patch fits exactly, on every blob id")
        for groups in SELECTIONS:
            transform(patches.select(groups), wheel.read, version)
        print(f"groups: each of the {len(SELECTIONS)} selections applies by itself")
        for name in differing:
            print(f"{name} is not as export writes it; run `sglang-lz checkout` and `export`.")
        if not differing:
            print("export: the committed bytes are those that export writes")
        print(workspace.diffstat(tree))
    return 1 if differing else 0


def _checkout(options: argparse.Namespace) -> int:
    version = release()
    patches = PatchSet.load(release_dir())
    with _upstream_wheel(options) as wheel:
        files = [name for name in wheel.names if name.endswith(".py")]
        workspace.checkout(patches, files, wheel.read, version, options.dir)
    print(f"{options.dir}: {NAME} {version} and {len(patches.patches)} commits")
    return 0


def _export(options: argparse.Namespace) -> int:
    root = checkout_patches_dir() / release()
    if (found := workspace.release(options.dir)) != root.name:
        raise DistError(f"{options.dir} is of {found}, but the patches are for {root.name}.")
    changed = workspace.write(workspace.export(options.dir), root)
    for name in changed:
        print(f"{'wrote' if (root / name).exists() else 'deleted'} {root.name}/{name}")
    print(f"{len(changed)} files changed")
    return 0


def _bump(options: argparse.Namespace) -> int:
    if options.skip and not options.resume:
        raise DistError("--skip goes with --continue.")
    if options.resume and options.dry_run:
        raise DistError("--dry-run has nothing to continue; leave one of the two out.")
    if options.dry_run:
        return bump.dry_run(options.version, options.cache, _say)
    tree = options.tree or default_cache().parent / f"bump-{options.version}"
    if options.resume:
        return bump.resume(options.version, tree, options.skip, options.cache, _say)
    return bump.begin(options.version, tree, options.cache, _say)


def _serve(options: argparse.Namespace) -> int:
    serve(options.arguments)


def _loops(options: argparse.Namespace) -> int:
    try:
        from ..loops import report  # as for `playground`, the standard library is not enough
    except ImportError as error:
        raise DistError(f"loops needs numpy and numba, which SGLang needs too ({error}).") from None
    names = ("max_pattern_size", "min_pattern_size", "min_count")
    asked = {name: getattr(options, name) for name in names}
    try:
        print(report.run(options.files, asked, as_json=options.json))
    except ValueError as error:
        raise DistError(str(error)) from None
    return 0


def _playground(options: argparse.Namespace) -> int:
    try:
        from ..playground import command
    except ImportError as error:
        raise DistError(f"playground needs what SGLang needs too ({error}).") from None
    try:
        if options.save is not None:
            command.save(options.save)
        else:
            command.run(options.server, options.host, options.port, options.record)
    except ValueError as error:
        raise DistError(str(error)) from None
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "build": _build,
    "apply": _apply,
    "revert": _revert,
    "doctor": _doctor,
    "verify": _verify,
    "serve": _serve,
    "loops": _loops,
    "playground": _playground,
    "lint": _lint,
    "check": _check,
    "checkout": _checkout,
    "export": _export,
    "bump": _bump,
}


def _report(checks: Iterable[doctor.Check]) -> int:
    """Print each check as it is done; return the exit status."""
    status = 0
    for check in checks:
        print(check, flush=True)
        status |= not check.ok
    return status


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _lock() -> Lock:
    return Lock.load(release_dir() / LOCK)


def _pin(options: argparse.Namespace) -> tuple[Lock, WheelPin]:
    """The lock of the release, and the pin of the wheel that the options choose."""
    lock = _lock()
    if not options.wheel:
        return lock, lock.select(options.python, options.arch)
    if options.python or options.arch:
        raise DistError(
            "--wheel already says which Python and machine; leave --python and --arch out."
        )
    for pin in lock.wheels:
        if pin.filename == options.wheel.name:
            return lock, pin
    raise DistError(
        f"{options.wheel.name} is not a pinned wheel: the patches are for {lock.describe()}."
    )


def _upstream_wheel(options: argparse.Namespace) -> Wheel:
    """Open the pinned wheel that the options choose."""
    lock, pin = _pin(options)
    if options.wheel:
        verify(options.wheel, pin)
    return Wheel(options.wheel or fetch(lock, pin, options.cache, _say))


class _Commands(argparse.RawDescriptionHelpFormatter):
    """Lists commands, the longest too, on one line each: argparse forgets their indentation."""

    def add_argument(self, action: argparse.Action) -> None:
        """Make room for an argument, and for the commands if it is theirs."""
        super().add_argument(action)
        self._action_max_length += self._indent_increment * bool(action.choices)


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "sglang-lz", description=MAIN, epilog=STATUS, formatter_class=_Commands
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
    for name in ("build", "check", "checkout", "bump"):
        pages[name].add_argument(
            "--cache",
            type=Path,
            default=default_cache(),
            metavar="DIR",
            help="where downloaded wheels stay (default: .cache/upstream of the checkout)",
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
    page = pages["bump"]
    page.add_argument("version", metavar="VERSION", help="upstream's release to carry to")
    page.add_argument("--dry-run", action="store_true", help="say what would come of it")
    page.add_argument("--continue", dest="resume", action="store_true", help="after a conflict")
    page.add_argument("--skip", action="store_true", help="the release does not need the patch")
    page.add_argument(
        "--tree", type=Path, metavar="DIR", help="the work tree (default: .cache/bump-VERSION)"
    )
    pages["verify"].add_argument("files", nargs="+", type=Path, metavar="FILE")
    pages["verify"].add_argument(
        "--public-key", required=True, metavar="KEY", help="minisign's: a file, or its base64 text"
    )
    for name in ("checkout", "export"):
        pages[name].add_argument("dir", type=Path, metavar="DIR", help="the git work tree")
    for name, meaning in (
        ("max-pattern-size", "the longest pattern, in tokens (default: 512)"),
        ("min-pattern-size", "the shortest (default: 1)"),
        ("min-count", "copies in a row that are a loop (default: 20)"),
    ):
        pages["loops"].add_argument(f"--{name}", type=int, metavar="N", help=meaning)
    page = pages["playground"]
    page.add_argument(
        "--server", default=DEFAULT_SERVER, metavar="URL", help=f"(default: {DEFAULT_SERVER})"
    )
    page.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"
    )
    page.add_argument(
        "--port", type=int, default=PLAYGROUND_PORT, help=f"(default: {PLAYGROUND_PORT})"
    )
    page.add_argument("--record", type=Path, metavar="FILE", help="record a session, and end")
    page.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write the page with the recorded session as one HTML file, and end",
    )
    pages["loops"].add_argument("--json", action="store_true", help="print JSON")
    pages["loops"].add_argument("files", nargs="+", metavar="FILE", help="- for standard input")
    return parser
