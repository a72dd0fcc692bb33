"""scripts/watch-upstream: finds a newer SGLang, tries the patches on it, and lists known CVEs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _checkout import ROOT
from _environment import CACHE, PATCHES, SetupError, main, say, split_option
from sglang_lz.distribution.sources import release

USAGE = """\
usage: scripts/watch-upstream [--version VERSION] [--report FILE]

Ask the package index for the newest release of SGLang. If the patches are not for it yet, say how
each would be carried there; if all can be, carry them in a clone of this checkout's commit, build,
and run the quick tests and one server's. Then ask for known vulnerabilities of what the CPU image
holds. For a nightly job: the report is Markdown, on standard output.

  --version VERSION   look at this release instead of the newest
  --report FILE       write the report to FILE, too

Writes .cache/ and FILE only. What it makes takes 4 GB there and is removed at the end.

exit status:
  0  nothing is new, or what is new works; no vulnerability is known
  1  a person must look: the report says at what
  2  something could not be asked or run
"""
NAME = "sglang"
AUDITED = ("docker/cpu.lock", "docker/torch.lock")
REQUIREMENTS = ROOT / "scripts" / "requirements-watch.txt"
# The documents and the deployment files do not cover the new release yet.
QUICK = (
    "quick",
    "-m",
    "not (full or gpu)",
    "--ignore=tests/unit/test_documents.py",
    "--ignore=tests/deploy",
)
SERVER = ("tests/server/test_modes.py", "-k", "overlap and not no-overlap")
SHOWN_LINES = 60


@dataclass
class Step:
    """One command of the watch: its purpose, its exit status and its output."""

    title: str
    status: int
    output: str

    def markdown(self) -> str:
        """Its section of the report, with the end of its output."""
        lines = self.output.strip().splitlines()
        left_out = (
            [f"({len(lines) - SHOWN_LINES} lines before)"] if len(lines) > SHOWN_LINES else []
        )
        shown = "\n".join(f"    {line}" for line in [*left_out, *lines[-SHOWN_LINES:]])
        return f"## {self.title}: {self.verdict()}\n\n{shown}\n"

    def verdict(self) -> str:
        """The result in one word."""
        return {0: "good", 1: "to do"}.get(self.status, "failed")


def run(title: str, command: list[str], cwd: Path, **environ: str) -> Step:
    """Run a command and show its purpose; the output includes standard error."""
    say(title)
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Step(title, done.returncode, done.stdout)


def newest_release() -> str:
    """Return the newest release in pip's index.

    Raises:
        SetupError: pip does not report it.
    """
    asked = run("asking for the newest release", [*PIP, "index", "versions", NAME], ROOT)
    found = re.search(rf"^{NAME} \((\S+)\)", asked.output, re.M)
    if found is None:
        lines = asked.output.strip().splitlines() or ["no reason given"]
        raise SetupError(f"pip does not say which is the newest release ({lines[-1]}).")
    return found[1]


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def look_at(version: str, folder: Path) -> Iterator[Step]:
    """Carry the patches to a release; if that succeeds for all of them, also build and test it.

    Args:
        version: the upstream version.
        folder: the folder for the clone; the caller removes it.
    """
    tool = [sys.executable, "-m", "sglang_lz"]
    checkout = {"PYTHONPATH": str(ROOT / "python")}
    carried = run(
        f"how the patches would be carried to {version}",
        [*tool, "bump", version, "--dry-run"],
        ROOT,
        **checkout,
    )
    yield carried
    if carried.status > 1 or re.search(r"^conflict ", carried.output, re.M):
        return
    yield run("cloning", ["git", "clone", "--quiet", str(ROOT), str(folder)], ROOT)
    clone = {"PYTHONPATH": str(folder / "python")}
    cache = ["--cache", str(CACHE / "upstream")]
    bump = run("carrying them in a clone", [*tool, "bump", version, *cache], folder, **clone)
    yield bump
    if bump.status:
        return
    test = [str(folder / "scripts" / "test")]
    yield run("building it, and the quick tests", [*test, *QUICK], folder)
    yield run("the contract on one server", [*test, *SERVER], folder)


def audit() -> Step:
    """Look up known vulnerabilities of the packages in the CPU image."""
    python = CACHE / "watch" / "bin" / "python"
    title = f"known vulnerabilities of {' and '.join(AUDITED)}"
    if not python.exists():
        made = run(
            "making an environment", [sys.executable, "-m", "venv", str(CACHE / "watch")], ROOT
        )
        if made.status:
            return Step(title, 2, made.output)
    got = run(
        "installing pip-audit",
        [str(python), *PIP[1:], "install", "--quiet", "--requirement", str(REQUIREMENTS)],
        ROOT,
    )
    if got.status:
        return Step(title, 2, got.output)
    options = [
        "--strict",
        "--disable-pip",
        "--no-deps",
        "--progress-spinner",
        "off",
    ]
    for lock in AUDITED:
        options += ["--requirement", lock]
    step = run(title, [str(python), "-m", "pip_audit", *options], ROOT)
    if step.status == 1 and "known vulnerabilit" not in step.output:
        step.status = 2  # it exits with the same status if the lookup failed
    return step


def watch(arguments: list[str]) -> int:
    """Run the script; return its exit status."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    version, rest = split_option("--version", arguments)
    report, rest = split_option("--report", rest)
    if rest:
        raise SetupError(f"{rest[0]!r} is not an argument; scripts/watch-upstream -h lists them.")
    try:
        version = version or newest_release()
    except SetupError as error:
        say(str(error))
        return 2
    steps: list[Step] = []
    folder = CACHE / f"watch-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if version != release(PATCHES):
            steps += look_at(version, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    steps.append(audit())
    known = (
        "the patches are for it"
        if version == release(PATCHES)
        else "the patches are not for it yet"
    )
    text = f"# SGLang {version}: {known}\n\n" + "\n".join(step.markdown() for step in steps)
    print(text, flush=True)
    if report:
        Path(report).write_text(text, "utf-8")
    worst = [step.status for step in steps]
    return 2 if any(status not in (0, 1) for status in worst) else max(worst)


if __name__ == "__main__":
    main(watch)
