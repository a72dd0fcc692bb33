"""Counters of penalties and loops, on upstream's `/metrics`.

They exist with upstream's --enable-metrics only. `requests` is counted where HTTP requests are
admitted. The others are counted in the scheduler, on one rank, when an output ends: from tokens
that are on the host, so nothing waits for a device. prometheus_client is imported at the first
count, as upstream does, because it reads its folder from the environment then.
"""

from __future__ import annotations

import logging
import random
from functools import cache
from typing import Any

from sglang_lz.params import LZParams
from sglang_lz.repetition import RECOMMENDED, Loop, RepetitionDetection, loops
from sglang_lz.window import SHORTEST_LOOP

logger = logging.getLogger(__name__)

PREFIX = "sglang_lz:"
OBSERVE = "lz_observe_loops"


class Counters:
    """What is counted. `penalty` is off, always (`lz_onset` 0) or onset."""

    def __init__(self) -> None:
        """Register the counters with prometheus_client."""
        from prometheus_client import Counter

        self.requests = Counter(
            f"{PREFIX}requests_total",
            "Requests over HTTP that were admitted.",
            ["endpoint", "penalty"],
        )
        self.ended = Counter(
            f"{PREFIX}outputs_in_loop_total",
            "Outputs in which repetition_detection found a loop, by its action.",
            ["action", "penalty"],
        )
        self.observed = Counter(
            f"{PREFIX}observed_outputs_total",
            "Finished outputs that --lz-observe-loops looked at, by where they loop: nowhere, "
            "inside, or at the end.",
            ["loop", "penalty"],
        )
        self.tokens = Counter(
            f"{PREFIX}tokens_in_loops_total",
            "Tokens of these outputs in loops, after the first copy; seen by the guard or by "
            "--lz-observe-loops.",
            ["penalty"],
        )
        self.overcome = Counter(
            f"{PREFIX}loops_ended_by_penalty_total",
            "Loops in observed outputs that reached lz_onset and broke off.",
        )


def check_share(value: Any) -> float:
    """Return the server's `--lz-observe-loops`, or raise ValueError naming its range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(
            f"--lz-observe-loops must be a number in [0, 1] (share of outputs), got {value!r}."
        )
    return float(value)


def admitted(endpoint: str, penalty: LZParams) -> None:
    """Count a request over HTTP.

    Args:
        endpoint: the path of its route.
        penalty: its LZ penalty, resolved; of strength 0 without one.
    """
    if _enabled():
        name = _name(penalty if penalty.penalty else None)
        counters().requests.labels(endpoint, name).inc()


def finished(req: Any, stopped: Loop | None, ended_thinking: Loop | None) -> None:
    """Count an output that has ended.

    Args:
        req: upstream's Req.
        stopped: the loop at which the guard stopped it.
        ended_thinking: the loop at which the guard ended its thinking section.
    """
    if not _counts():
        return
    params = req.sampling_params.lz_params
    penalty = _name(params)
    for action, loop in (("stop", stopped), ("end_thinking", ended_thinking)):
        if loop is not None:
            counters().ended.labels(action, penalty).inc()
            counters().tokens.labels(penalty).inc(_repeated(loop))
            logger.debug(
                "loop in %s: pattern of %d tokens, %d copies, from token %d on; %s",
                *(req.rid, loop.pattern_size, loop.count, loop.begin, action),
            )
    if random.random() < _share():
        _observe(req, params, penalty, counted=stopped is not None or ended_thinking is not None)


def _observe(req: Any, params: LZParams | None, penalty: str, *, counted: bool) -> None:
    output = req.output_ids_through_stop
    found = list(loops(output, RECOMMENDED))
    # What the guard stopped ends in a loop, by its own definition.
    at_end = req.finished_reason.to_json()["type"] == "repetition" or (
        bool(found) and found[-1].end == len(output)
    )
    place = "end" if at_end else "inside" if found else "nowhere"
    counters().observed.labels(place, penalty).inc()
    if not counted:
        counters().tokens.labels(penalty).inc(sum(map(_repeated, found)))
    if params is not None and params.onset:
        longest = max(params.window_size - 1, 1)
        reached = RepetitionDetection(longest, min_count=params.onset + 1)
        ended = (
            loop
            for loop in loops(output, reached)
            if _repeated(loop) >= SHORTEST_LOOP and loop.end < len(output)
        )
        counters().overcome.inc(sum(1 for _ in ended))


@cache
def counters() -> Counters:
    """The counters of this process."""
    return Counters()


@cache
def _enabled() -> bool:
    return bool(_config("enable_metrics"))


@cache
def _share() -> float:
    return float(_config(OBSERVE))


@cache
def _counts() -> bool:
    """Whether this process is the one of its scheduler's ranks that counts."""
    from sglang.srt.runtime_context import get_parallel

    ranks = get_parallel()
    own = (ranks.attn_tp_rank, ranks.attn_cp_rank, ranks.pp_rank)
    # A prefill server sees the first token only.
    return _enabled() and not any(own) and _config("disaggregation_mode") != "prefill"


def _config(name: str) -> Any:
    from sglang.srt.runtime_context import get_context

    return get_context().config_leaf(name)


def _name(params: LZParams | None) -> str:
    if params is None:
        return "off"
    return "onset" if params.onset else "always"


def _repeated(loop: Loop) -> int:
    return loop.end - loop.begin - loop.pattern_size
