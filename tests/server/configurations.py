"""The server configurations under test, by name."""

from __future__ import annotations

import pytest

from server.launch import Config

CONFIGURATIONS = {
    config.name: config
    for config in (
        Config("overlap", ("--enable-metrics",)),
        Config("no-overlap", ("--disable-overlap-schedule", "--enable-streaming-session")),
        Config("chunked", ("--chunked-prefill-size", "16", "--page-size", "16")),
        Config("mixed-chunk", ("--chunked-prefill-size", "16", "--enable-mixed-chunk")),
        # Room for about half of what the tests ask for, and a scheduler that hopes for the best.
        Config("tiny-pool", ("--max-total-tokens", "640", "--schedule-conservativeness", "0.1")),
        Config(
            "tiny-pool-mixed",
            (
                *("--max-total-tokens", "640", "--schedule-conservativeness", "0.1"),
                *("--chunked-prefill-size", "16", "--enable-mixed-chunk"),
                "--disable-overlap-schedule",
            ),
        ),
        Config("tp2", ("--tp", "2"), (("SGLANG_CPU_OMP_THREADS_BIND", "0|1"),)),
        Config("dp2", ("--dp", "2")),
        Config(
            "defaults",
            (
                *("--preferred-sampling-params", '{"lz_penalty": 0.5, "lz_cost": "rate"}'),
                *("--lz-max-window-size", "24"),
            ),
        ),
        Config(
            "ngram",
            ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4"),
        ),
        Config("stock", stock=True),
    )
}

# Where the scheduler takes different ways from one token to the next.
SCHEDULERS = ("overlap", "no-overlap", "chunked", "mixed-chunk")


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on the servers of these configurations (fixture `server`)."""
    return pytest.mark.parametrize("server", names, indirect=True)
