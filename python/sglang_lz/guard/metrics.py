"""Counters of penalties and loops, on upstream's `/metrics`.

They exist only with upstream's --enable-metrics. `requests` is incremented where HTTP requests are
admitted. The others are incremented in the scheduler, on one rank, when an output ends. They use
tokens that are already on the host, so nothing waits for a device. Like upstream, we import
prometheus_client at the first count, because it then reads its folder from the environment.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lz_penalty.detector import Loop, loops
from lz_penalty.fields.lz import LZParams
from lz_penalty.fields.repetition import END_THINKING, RECOMMENDED, STOP, RepetitionDetection
from lz_penalty.numbers import number_tokens
from lz_penalty.window import shortest_loop

logger = logging.getLogger(__name__)

# A generator of our own: only one rank draws, and upstream's ranks must all draw the same numbers.
_RANDOM = random.Random()

PENALTIES = ("off", "always", "onset")
"""Requests without the LZ penalty, with `lz_onset` 0, and with a positive `lz_onset`."""
ACTIONS = (STOP, END_THINKING)
PLACES = ("nowhere", "inside", "end")
REQUESTS = "requests"
ENDED = "outputs_in_loop"
OBSERVED = "observed_outputs"
TOKENS = "tokens_in_loops"
OVERCOME = "loops_ended_by_penalty"
COUNTERS: Mapping[str, tuple[str, list[str]]] = {
    REQUESTS: ("Requests over HTTP that were admitted.", ["endpoint", "penalty"]),
    ENDED: (
        "Outputs in which repetition_detection found a loop, by its action.",
        ["action", "penalty"],
    ),
    OBSERVED: (
        "Finished outputs that --lz-observe-loops looked at, by where they loop: nowhere, inside, "
        "or at the end.",
        ["loop", "penalty"],
    ),
    TOKENS: (
        "Tokens of these outputs in loops, after the first copy; seen by the guard or by "
        "--lz-observe-loops.",
        ["penalty"],
    ),
    OVERCOME: ("Loops in observed outputs that reached lz_onset and broke off.", []),
}


def start() -> None:
    """Export the scheduler's counters as 0, so that the first event shows as an increase."""
    if _counts():
        _count(OVERCOME, by=0)
        for penalty in PENALTIES:
            _count(TOKENS, penalty, by=0)
            for action in ACTIONS:
                _count(ENDED, action, penalty, by=0)
            for place in PLACES:
                _count(OBSERVED, place, penalty, by=0)


def admitted(endpoint: str, penalties: Sequence[LZParams]) -> None:
    """Count an HTTP request.

    Args:
        endpoint: the path of its route.
        penalties: its resolved LZ penalties, one for each object of sampling parameters, with
            strength 0 if there is none. Only the first nonzero penalty is counted.
    """
    if _config("enable_metrics"):
        penalty = next((one for one in penalties if one.penalty), None)
        _count(REQUESTS, endpoint, _name(penalty))


def finished(req: Any, stopped: Loop | None, ended_thinking: Loop | None) -> None:
    """Count an output that has ended.

    Args:
        req: upstream's Req.
        stopped: the loop at which the guard stopped the output.
        ended_thinking: the loop at which the guard ended the thinking section.
    """
    if not _is_first_rank():
        return
    penalty = _name(req.sampling_params.lz_params)
    for action, loop in ((STOP, stopped), (END_THINKING, ended_thinking)):
        if loop is None:
            continue
        logger.debug(
            "loop in %s: pattern of %d tokens, %d copies, from token %d on; %s",
            *(req.rid, loop.pattern_size, loop.count, loop.begin, action),
        )
        if _config("enable_metrics"):
            _count(ENDED, action, penalty)
            _count(TOKENS, penalty, by=loop.repeated)
    if _counts() and _is_output(req) and _RANDOM.random() < _config("lz_observe_loops"):
        _observe(req, stopped, ended_thinking)


def reached(
    output: array[int], window_size: int, onset: int, numbers: NDArray[np.uint8]
) -> Iterator[Loop]:
    """The loops of a finished output that a penalty with an onset sees (docs/SPEC.md section 9).

    Args:
        output: token ids, as array("q").
        window_size: W.
        onset: n, at least 1.
        numbers: 1 for each token of N, uint8 [V].
    """
    longest, end = max(window_size - 1, 1), 0
    exact = RepetitionDetection(longest, min_count=onset + 1)
    alike = RepetitionDetection(longest, min_count=onset + 2, ignore_numbers=True)
    runs = shortest_loop(1), shortest_loop(2)
    found = [*loops(output, exact, least_runs=runs), *loops(output, alike, numbers, runs)]
    for loop in sorted(found, key=lambda one: (one.begin, -one.end)):
        if loop.end > end:  # many loops are found as both kinds
            end = loop.end
            yield loop


def _observe(req: Any, stopped: Loop | None, ended_thinking: Loop | None) -> None:
    output, params = req.output_ids_through_stop, req.sampling_params.lz_params
    penalty = _name(params)
    found = list(loops(output, RECOMMENDED))
    # An output that the guard stopped ends in a loop as its own request defines it.
    at_end = stopped is not None or (bool(found) and found[-1].end == len(output))
    place = "end" if at_end else "inside" if found else "nowhere"
    _count(OBSERVED, place, penalty)
    if stopped is None and ended_thinking is None:  # otherwise its tokens are already counted
        _count(TOKENS, penalty, by=sum(loop.repeated for loop in found))
    if params is not None and params.onset:
        numbers = number_tokens(req.tokenizer, req.vocab_size)
        broken_off = reached(output, params.window_size, params.onset, numbers)
        _count(OVERCOME, by=sum(loop.end < len(output) for loop in broken_off))


def _count(name: str, *labels: str, by: int = 1) -> None:
    counter = _counter(name)
    (counter.labels(*labels) if labels else counter).inc(by)


@cache
def _counter(name: str) -> Any:
    from prometheus_client import Counter

    return Counter(f"sglang_lz:{name}_total", *COUNTERS[name])


@cache
def _is_first_rank() -> bool:
    """Whether this process is the one of its scheduler's ranks that counts and logs."""
    from sglang.srt.runtime_context import get_parallel

    ranks = get_parallel()
    own = (ranks.attn_tp_rank, ranks.attn_cp_rank, ranks.pp_rank)
    # A prefill server only sees the first token.
    return not any(own) and _config("disaggregation_mode") != "prefill"


def _counts() -> bool:
    return _config("enable_metrics") and _is_first_rank()


def _is_output(req: Any) -> bool:
    """Whether this output goes to a client.

    Upstream sends its own health checks. Before it samples a prompt several times, it also sends a
    request for no tokens, which only fills the prefix cache.
    """
    from sglang.srt.managers.utils import is_health_check_generate_req

    return req.sampling_params.max_new_tokens != 0 and not is_health_check_generate_req(req)


@cache
def _config(name: str) -> Any:
    from sglang.srt.runtime_context import get_context

    return get_context().config_leaf(name)


def _name(params: LZParams | None) -> str:
    if params is None:
        return "off"
    return "onset" if params.onset else "always"
