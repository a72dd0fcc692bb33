"""Tests that need programs of the system: skipped without them, and with CI set errors."""

from __future__ import annotations

import os

import pytest

from _tools import Tools


def require(tools: Tools) -> None:
    """Skip the test that asks, or with CI set fail it, if there is a program missing."""
    if packages := tools.missing():
        names = " ".join(packages)
        reason = f"{names} not installed (on Debian and Ubuntu as root: apt-get install {names})"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
