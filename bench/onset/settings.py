"""The settings of the constants that are compared."""

from __future__ import annotations

from bench.onset.rule import LATCH, Setting

NO_PENALTY = Setting(alpha=0)
SPEC = "section 9"

SETTINGS: dict[str, Setting] = {
    "no penalty": NO_PENALTY,
    "always on": Setting(onset=0),
    "latch": LATCH,
    "growth, no memory": Setting(memory=0),
    SPEC: Setting(),
    **{f"onset {n}": Setting(onset=n) for n in (1, 2)},
    **{f"memory of {steps}": Setting(memory=steps) for steps in (256, 1024)},
    **{f"strength {strength:g}": Setting(strength=strength) for strength in (1, 1.5, 3)},
    **{f"cover of {cover} in 64": Setting(cover=cover) for cover in (24, 32, 48)},
    "cover of 20 in 32": Setting(newest=32, cover=20),
    "cover of 80 in 128": Setting(newest=128, cover=80),
    "second loop within 256": Setting(second=256),
    **{f"match of {match}": Setting(match=match) for match in (1, 3)},
    **{f"window {window}": Setting(window=window) for window in (64, 4096)},
    "rate": Setting(rate=1),
}
"""By name; from the sixth on, each changes one constant of SPEC's."""
