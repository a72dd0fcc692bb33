"""Programs of the system that some tests need: which, what is missing of them, installing it.

Standard library only. scripts/test installs, once and before any test runs; tests only look.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _supervise
from _environment import ROOT, say

LOCK_SECONDS = 1800
"""How long to wait for another installation of packages on this machine."""
APT_LISTS = Path("/var/lib/apt/lists/lock")
"""What `apt-get update` locks; held by another, it gives up at once, whatever its options are."""
VALUED = re.compile(
    "-[A-Za-z]*[Wckmnopr]$|--(basetemp|capture|color|confcutdir|deselect|dist|durations|ignore"
    "|ignore-glob|import-mode|junit-xml|junitxml|log-[a-z-]+|maxfail|override-ini|rootdir|tb|tx)$"
)
"""Options of pytest whose value is the next word."""
ROOTS_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Tools:
    """What the tests of some files need.

    Attributes:
        tests: the files, as a pattern below the checkout.
        programs: names of programs. Of one with several, separated by "|", any will do; the first
            is that of Debian's package, unless `packages` has another.
        for_users: more of them that only other users than root need.
    """

    tests: str
    programs: tuple[str, ...]
    for_users: tuple[str, ...] = ()

    def used_below(self, path: Path) -> bool:
        """Whether the tests of a file or folder are, or hold, some of `tests`."""
        return path.match(self.tests) or (ROOT / self.tests).is_relative_to(path)

    def missing(self) -> list[str]:
        """The packages, as Debian names them, of the programs that are not there."""
        needed = self.programs + (self.for_users if os.geteuid() else ())
        wanting = [names.split("|")[0] for names in needed if not find(names)]
        return [PACKAGES.get(name, name) for name in wanting]


PACKAGES = {"newuidmap": "uidmap"}
"""Debian's packages that are not called as their program."""
IMAGE_TOOLS = Tools(
    "tests/deploy/test_*_image.py",
    ("podman", "buildah", "runc", "catatonit", "mmdebstrap"),
    for_users=("newuidmap",),
)
PAGE_TOOLS = Tools("tests/deploy/test_report_page.py", ("chromium|chromium-browser|google-chrome",))
ALL = (IMAGE_TOOLS, PAGE_TOOLS)


def find(names: str) -> str | None:
    """The path of a program, or of the first of several separated by "|".

    Also where root looks and others do not: what runs there needs no rights.
    """
    folders = [os.environ.get("PATH", os.defpath), *ROOTS_FOLDERS]
    found = (shutil.which(name, path=os.pathsep.join(folders)) for name in names.split("|"))
    return next(filter(None, found), None)


def needed(arguments: list[str]) -> Sequence[Tools]:
    """Which tools the tests may need that arguments of pytest select; rather one too many."""
    paths = test_paths(arguments)
    if not paths:
        return ALL
    return [tools for tools in ALL if any(tools.used_below(path) for path in paths)]


def test_paths(arguments: list[str]) -> list[Path]:
    """The files and folders among arguments of pytest, whether or not they exist.

    The word after an option that is `VALUED` is its value.
    """
    pairs = zip(["", *arguments], arguments, strict=False)
    words = [word for before, word in pairs if not VALUED.match(before)]
    return [ROOT / word.partition("::")[0] for word in words if not word.startswith("-")]


def install(wanted: Sequence[Tools]) -> None:
    """Install what is missing, if this is root on a Debian or Ubuntu.

    It is no error if not: the tests that need it say so.
    """
    if os.geteuid() or not find("apt-get") or not any(tools.missing() for tools in wanted):
        return
    say("installing programs of the system that some tests need")
    try:
        with APT_LISTS.open("a") as lists:
            fcntl.flock(lists, fcntl.LOCK_EX)  # one of us; apt-get's own locks are of another kind
            missing = [packages for tools in wanted if (packages := tools.missing())]
            if missing:
                fcntl.lockf(lists, fcntl.LOCK_EX)  # which `apt-get update` does not wait for
                fcntl.lockf(lists, fcntl.LOCK_UN)
                _apt_get("update")  # where it fails, old lists may do
            for packages in missing:  # each by itself: a distribution may lack one
                _apt_get("install", *packages)
    except OSError as error:
        say(f"{error.filename}: {error.strerror}.")


def _apt_get(what: str, *packages: str) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    options = ["--quiet", "--yes", "--no-install-recommends"]
    options += ["--option", f"DPkg::Lock::Timeout={LOCK_SECONDS}"]
    if _supervise.run(["apt-get", *options, what, *packages], env=env, cwd=ROOT):
        say(f"apt-get could not {' '.join([what, *packages])}, see the lines above.")
