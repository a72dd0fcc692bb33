"""Drive real servers with random schedules; hold every sampled position to the oracle."""

import sys

from bench.common import ROOT

# The oracle and what starts and asks servers are the tests' own: they share no code with the
# product, and a second copy would drift.
sys.path.insert(0, str(ROOT / "tests"))
