"""System programs that some tests need: lists them, finds missing ones and installs them.

This uses only the standard library. scripts/test installs missing programs once, before any test
runs; the tests only check for them.
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
from _checkout import ROOT
from _environment import say

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
    """The programs that the tests in some files need.

    Attributes:
        tests: the files, as a pattern relative to the checkout.
        programs: the names of the programs, which are those of Debian's packages unless `PACKAGES`
            gives another.
        for_users: additional programs that are needed only if the user is not root.
    """

    tests: str
    programs: tuple[str, ...]
    for_users: tuple[str, ...] = ()

    def used_below(self, path: Path) -> bool:
        """Whether a file is one of `tests`, or a folder contains one."""
        return path.match(self.tests) or (ROOT / self.tests).is_relative_to(path)

    def missing(self) -> list[str]:
        """The Debian packages of the programs that are missing."""
        needed = self.programs + (self.for_users if os.geteuid() else ())
        return [PACKAGES.get(name, name) for name in needed if not find(name)]


PACKAGES = {"newuidmap": "uidmap"}
"""Debian's packages that are not called as their program."""
IMAGE_TOOLS = Tools(
    "tests/deploy/test_*_image.py",
    ("podman", "buildah", "runc", "catatonit", "mmdebstrap"),
    for_users=("newuidmap",),
)
BROWSER_TOOLS = Tools("tests/server/test_playground.py", ("chromium",))
ALL = (IMAGE_TOOLS, BROWSER_TOOLS)
CLIENTS = Tools("tests/server/test_clients.py", ())
"""The clients of `_environment.CLIENTS`, which are no programs of the system."""


def find(name: str) -> str | None:
    """The path of a program.

    This also searches the folders that are usually only in root's PATH, because the programs there
    do not require root.
    """
    folders = [os.environ.get("PATH", os.defpath), *ROOTS_FOLDERS]
    return shutil.which(name, path=os.pathsep.join(folders))


def needed(arguments: list[str]) -> Sequence[Tools]:
    """The tools that the tests selected by pytest arguments may need; possibly more than needed."""
    paths = test_paths(arguments)
    if not paths:
        return ALL
    return [tools for tools in ALL if any(tools.used_below(path) for path in paths)]


def test_paths(arguments: list[str]) -> list[Path]:
    """The files and folders among pytest arguments, whether or not they exist.

    The word after an option in `VALUED` is that option's value.
    """
    pairs = zip(["", *arguments], arguments, strict=False)
    words = [word for before, word in pairs if not VALUED.match(before)]
    return [ROOT / word.partition("::")[0] for word in words if not word.startswith("-")]


def install(wanted: Sequence[Tools]) -> None:
    """Install what is missing, if this is run as root on Debian or Ubuntu.

    Otherwise this does nothing, and the tests that need the programs report it.
    """
    if os.geteuid() or not find("apt-get") or not any(tools.missing() for tools in wanted):
        return
    say("installing programs of the system that some tests need")
    try:
        with APT_LISTS.open("a") as lists:
            fcntl.flock(lists, fcntl.LOCK_EX)  # excludes only our own other runs
            missing = [packages for tools in wanted if (packages := tools.missing())]
            if missing:
                fcntl.lockf(lists, fcntl.LOCK_EX)  # `apt-get update` does not wait for it
                fcntl.lockf(lists, fcntl.LOCK_UN)
                _apt_get("update")  # if it fails, the old lists may suffice
            for packages in missing:  # one by one, because a distribution may lack one
                _apt_get("install", *packages)
    except OSError as error:
        say(f"{error.filename}: {error.strerror}.")


def _apt_get(what: str, *packages: str) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    options = ["--quiet", "--yes", "--no-install-recommends"]
    options += ["--option", f"DPkg::Lock::Timeout={LOCK_SECONDS}"]
    if _supervise.run(["apt-get", *options, what, *packages], env=env, cwd=ROOT):
        say(f"apt-get could not {' '.join([what, *packages])}, see the lines above.")
