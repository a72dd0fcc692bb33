"""scripts/watch-upstream: finds a newer SGLang, tries the patches on it, and lists known CVEs."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _checkout import ROOT
from _environment import (
    CACHE,
    PATCHES,
    UV,
    do_steps,
    main,
    say,
    temporary_folder,
    uv_step,
    uv_variables,
)
from sglang_lz.distribution.sources import release

DESCRIPTION = """\
Ask the package index for the newest release of SGLang. If the patches are not for it yet, say how
each would be carried there; if all can be, carry them in a clone of this checkout's commit, build,
and run the quick tests and one server's. Then ask for known vulnerabilities of what the CPU image
holds. For a nightly job: the report is Markdown, on standard output.
"""
EPILOG = """\
exit status:
  0  nothing is new, or what is new works; no vulnerability is known
  1  a person must look: the report says at what
  2  something could not be asked or run
"""
NAME = "sglang"
AUDITED = ("docker/cpu.lock", "docker/torch.lock")
AUDIT = [
    *("tool", "run", "--quiet", "pip-audit==2.10.1", "--strict", "--disable-pip", "--no-deps"),
    *("--progress-spinner", "off", *(word for lock in AUDITED for word in ("--requirement", lock))),
]
BUMP_NEEDS = ("--with", "ruff", "--with", "griffelib", "--with", "pip")
# The documents and the deployment files do not cover the new release yet.
QUICK = (
    *("quick", "-m", "not (full or gpu)", "--ignore=tests/unit/test_documents.py"),
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
        verdict = {0: "good", 1: "to do"}.get(self.status, "failed")
        lines = self.output.strip().splitlines()
        before = len(lines) - SHOWN_LINES
        left_out = [f"({before} lines before)"] if before > 0 else []
        shown = "\n".join(f"    {line}" for line in [*left_out, *lines[-SHOWN_LINES:]])
        return f"## {self.title}: {verdict}\n\n{shown}\n"


def run(title: str, command: list[str], cwd: Path = ROOT, **environ: str) -> Step:
    """Run a command and show its purpose; the output includes standard error."""
    say(title)
    done = subprocess.run(
        command,
        cwd=cwd,
        env=uv_variables() | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Step(title, done.returncode, done.stdout)


def look_at(version: str, folder: Path) -> Iterator[Step]:
    """Carry the patches to a release, in a clone in `folder`; if all can be, build and test it."""
    uv = [str(UV / "bin" / "uv"), "run", "--quiet", "--no-project", "--python", sys.executable]
    bump = [*uv, *BUMP_NEEDS, "python", "-m", "sglang_lz", "bump", version]
    title = f"how the patches would be carried to {version}"
    carried = run(title, [*bump, "--dry-run"], PYTHONPATH=str(ROOT / "python"))
    yield carried
    if carried.status > 1 or re.search(r"^conflict ", carried.output, re.M):
        return
    yield run("cloning", ["git", "clone", "--quiet", str(ROOT), str(folder)])
    bump += ["--cache", str(CACHE / "upstream")]
    done = run("carrying them in a clone", bump, folder, PYTHONPATH=str(folder / "python"))
    yield done
    if done.status:
        return
    test = str(folder / "scripts" / "test")
    yield run("building it, and the quick tests", [test, *QUICK], folder)
    yield run("the contract on one server", [test, *SERVER], folder)


def audit() -> Step:
    """Look up known vulnerabilities of the packages in the CPU image."""
    title = f"known vulnerabilities of {' and '.join(AUDITED)}"
    step = run(title, [str(UV / "bin" / "uv"), *AUDIT])
    if step.status == 1 and "known vulnerabilit" not in step.output:
        step.status = 2  # it exits with the same status if the lookup failed
    return step


def watch(arguments: list[str]) -> int:
    """Run the script; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/watch-upstream",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", help="look at this release instead of the newest")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report to it, too")
    given = parser.parse_args(arguments)
    with temporary_folder():
        do_steps([uv_step()])
        version = given.version
        if not version:
            pip = [str(UV / "bin" / "python"), "-m", "pip", "index", "versions", NAME]
            asked = run("asking for the newest release", pip)
            found = re.search(rf"^{NAME} \((\S+)\)", asked.output, re.M)
            if found is None:
                say(f"pip does not say which is the newest release: {asked.output.strip()}")
                return 2
            version = found[1]
        steps: list[Step] = []
        is_known = version == release(PATCHES)
        folder = CACHE / f"watch-{version}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            steps += [] if is_known else look_at(version, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        steps.append(audit())
    title = f"the patches are {'' if is_known else 'not '}for it{'' if is_known else ' yet'}"
    text = f"# SGLang {version}: {title}\n\n" + "\n".join(step.markdown() for step in steps)
    print(text, flush=True)
    if given.report:
        given.report.write_text(text, "utf-8")
    worst = max(step.status for step in steps)
    return worst if all(step.status in (0, 1) for step in steps) else 2


if __name__ == "__main__":
    main(watch)
