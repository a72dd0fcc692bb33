"""What one client can do to the others: hostile requests beside an ordinary stream."""

import sys

from bench.common import ROOT

# What starts servers is the tests' own, as for the soak.
sys.path.insert(0, str(ROOT / "tests"))
