"""System programs that some tests need: finds missing ones and installs them.

scripts/test installs missing programs once, before any test runs; the tests only check for them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _supervise
from _checkout import ROOT
from _environment import say

APT_LISTS = Path("/var/lib/apt/lists/lock")
"""What `apt-get update` locks; held by another, it gives up at once, whatever its options are."""
ROOTS_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Tools:
    """The programs that the tests in some files need.

    Attributes:
        tests: the files, as a pattern relative to the checkout.
        programs: the names of the programs and of Debian's packages.
        for_users: those that are needed only if the user is not root: Debian's package by program.
    """

    tests: str
    programs: tuple[str, ...]
    for_users: tuple[tuple[str, str], ...] = ()

    def missing(self) -> list[str]:
        """The Debian packages of the programs that are missing."""
        needed = [(name, name) for name in self.programs]
        needed += self.for_users if os.geteuid() else ()
        return [package for name, package in needed if not find(name)]


IMAGE_TOOLS = Tools(
    "tests/deploy/test_*_image.py",
    ("podman", "buildah", "runc", "catatonit", "mmdebstrap"),
    for_users=(("newuidmap", "uidmap"),),
)
BROWSER_TOOLS = Tools("tests/server/test_playground.py", ("chromium",))


def find(name: str) -> str | None:
    """The path of a program, also in the folders that are usually only in root's PATH."""
    folders = [os.environ.get("PATH", os.defpath), *ROOTS_FOLDERS]
    return shutil.which(name, path=os.pathsep.join(folders))


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
            fcntl.lockf(lists, fcntl.LOCK_EX)  # `apt-get update` does not wait for it
            fcntl.lockf(lists, fcntl.LOCK_UN)
            _apt_get("update")  # if it fails, the old lists may suffice
            for tools in wanted:  # one by one, because a distribution may lack one
                if packages := tools.missing():
                    _apt_get("install", *packages)
    except OSError as error:
        say(f"{error.filename}: {error.strerror}.")


def _apt_get(what: str, *packages: str) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    options = ["--quiet", "--yes", "--no-install-recommends", "--option=DPkg::Lock::Timeout=1800"]
    if _supervise.run(["apt-get", *options, what, *packages], env=env, cwd=ROOT):
        say(f"apt-get could not {' '.join([what, *packages])}, see the lines above.")
