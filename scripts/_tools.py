"""System programs that some tests need: finds missing ones and installs them.

scripts/test installs missing programs once, before any test runs; the tests only check for them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import _supervise
from _checkout import ROOT
from _environment import CACHE, say

ROOTS_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Tools:
    """The programs that the tests in some files need."""

    tests: str  # the files, as a pattern relative to the checkout
    programs: tuple[str, ...]  # the names of the programs and of Debian's packages
    # Those that users other than root need, each with Debian's package.
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
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of ours may be at it
        _apt_get("update")  # if it fails, the old lists may suffice
        for tools in wanted:  # one by one, because a distribution may lack one
            if packages := tools.missing():
                _apt_get("install", *packages)


def _apt_get(what: str, *packages: str) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    options = ["--quiet", "--yes", "--no-install-recommends", "--option=DPkg::Lock::Timeout=1800"]
    if _supervise.run(["apt-get", *options, what, *packages], env=env, cwd=ROOT):
        say(f"apt-get could not {' '.join([what, *packages])}, see the lines above.")
