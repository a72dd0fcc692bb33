"""The settings of the constants that are compared."""

from __future__ import annotations

from bench.onset.rule import Setting

NO_PENALTY = Setting(alpha=0)
SHIPPED = Setting()

SETTINGS: dict[str, Setting] = {
    "no penalty": NO_PENALTY,
    "always on": Setting(onset=0),
    "shipped": SHIPPED,
    **{f"n {n}": Setting(onset=n) for n in (1, 3, 4)},
    **{f"shortest run {run}": Setting(shortest=run) for run in (8, 24, 32)},
    **{f"shortest run {run} or 16 copies": Setting(shortest=run, times=16) for run in (24, 32, 48)},
    **{
        f"n 3, shortest run {run} or 16 copies": Setting(onset=3, shortest=run, times=16)
        for run in (24, 48)
    },
    "growth from runs of 4": Setting(growing=4),
    "32 or 16 copies, growth from 4": Setting(shortest=32, times=16, growing=4),
    "48 or 16 copies, growth from 4": Setting(shortest=48, times=16, growing=4),
    **{f"growth {growth}": Setting(growth=growth) for growth in (0, 2)},
    **{f"half-life {tokens}": Setting(half_life=tokens) for tokens in (64, 256, 1024)},
    "no memory": Setting(half_life=0),
    "forget after 512": Setting(forget=512),
    "the loop's tokens": Setting(looped=1),
    **{f"alpha {alpha}": Setting(alpha=alpha) for alpha in (0.05, 0.1, 0.2, 0.3, 0.5)},
}
"""By name; all but the first three change a constant or two of the shipped ones."""
