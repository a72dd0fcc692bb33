"""scripts/release: its arguments and targets; tests/distribution/test_release.py makes releases."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
script = importlib.import_module("_release")
making = importlib.import_module("_make_release")


def test_the_tests_use_the_release_packages() -> None:
    tested, used = (
        dict(re.findall(r"^([\w.-]+)==([^\s\\]+)", (SCRIPTS / name).read_text(), re.M))
        for name in ("test.lock", "release.lock")
    )
    assert used.items() <= tested.items()


@pytest.mark.parametrize("argument", ["-h", "--wrong"])
def test_the_manual_needs_no_environment(argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(script, "do_steps")
    with pytest.raises(SystemExit):
        script.release([argument])


def test_every_flavour_of_every_pinned_wheel_is_made() -> None:
    everything = making._targets(None)
    names = {target.filename for target in everything}
    assert len(names) == len(everything) == 2 * len({target.pin for target in everything})
    (one,) = making._targets("cp311,x86_64,cpu")
    version = f"{one.lock.version}+lz{one.lock.revision}.cpu"
    assert one.filename == f"sglang-{version}-cp311-cp311-manylinux_2_34_x86_64.whl"
