"""Settings of every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Shared machines stall: time limits on single examples would fail for no fault of the code.
settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-machine")
