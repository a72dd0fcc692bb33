"""Run the tests of the Triton kernels by their PTX, without a GPU: `python tests/ptx/run.py -h`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = (
    *("tests/unit/test_kernels.py", "tests/unit/test_penalizer.py"),
    "tests/ptx/larger.py",  # by its name only: pytest does not collect it
)
LAUNCHING = (
    "(cuda or bits or go_round or warming or kernels_of_a_gpu or larger) "
    "and not compile and not cpu"
)


def main() -> int:
    """Run the command line; returns pytest's exit status, 1 if a race or the like was found."""
    parser = argparse.ArgumentParser(
        description="Run the kernels' tests under random schedules, with a detector of races.",
        epilog="Other arguments go to pytest; tests/ptx/README.md says more.",
    )
    parser.add_argument("--schedules", default="4", help="of each launch (default: %(default)s)")
    parser.add_argument("--seed", default="0", help="default: %(default)s")
    given, rest = parser.parse_known_args()
    paths = (HERE, ROOT / "python", ROOT / "tests", ROOT / "tests/unit", ROOT)
    env = os.environ | {
        "PTX_SCHEDULES": given.schedules,
        "PTX_SEED": given.seed,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
    tests = [] if any(".py" in argument for argument in rest) else [*TESTS, "-k", LAUNCHING]
    pytest = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "plugin"]
    return subprocess.run([*pytest, *tests, *rest], cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
