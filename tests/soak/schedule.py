"""A schedule of requests: random waves, all from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hostile.attacks import random_fields
from oracle import Penalties
from server.client import OFF, Json
from server.contract import NO_PENALTIES, Case
from server.encodings import FINITE, encodings
from server.prompts import parameters, penalties, repetitive, token_ids

ANSWER = "answer"
STREAM = "stream"
HANG_UP = "stream left by its client"
LEAVE = "request left by its client"
ABORT = "abort"
KILLED_CLIENT = "client killed"
TOKENS = "greedy tokens"
PROMPT = "prompt"
REFUSED = "refused"
HOSTILE = "hostile"
"""How a request is sent and ends. `TOKENS` asks for no logprobs, which is the only way that
upstream mixes chunks and decodes in a batch; `PROMPT` asks for those of the prompt as well.
`HOSTILE` has values and constraints of `hostile`: it may be refused or answered, and what is
sampled is not checked, only that of the others."""

SHARES: Mapping[str, float] = {
    ANSWER: 0.66,
    STREAM: 0.04,
    HANG_UP: 0.02,
    LEAVE: 0.02,
    ABORT: 0.06,
    KILLED_CLIENT: 0.005,
    TOKENS: 0.08,
    PROMPT: 0.04,
    REFUSED: 0.045,
    HOSTILE: 0.03,
}

TOKENS_ONLY: Mapping[str, float] = {TOKENS: 0.93, REFUSED: 0.05, HOSTILE: 0.02}

WAVE_SIZE = 360
STOPS = ("e", "the", "\n", ". ", "0", "zz")
WRONG: tuple[tuple[Json, str], ...] = (
    ({"lz_penalty": -0.1}, "lz_penalty must be a finite number in [0, 10]"),
    ({"lz_penalty": "0.5"}, "lz_penalty must be a finite number in [0, 10]"),
    ({"lz_penalty": True}, "lz_penalty must be a finite number in [0, 10]"),
    ({"lz_window_size": 0}, "lz_window_size must be an integer in [1, 1024]"),
    ({"lz_window_size": 4097}, "lz_window_size must be an integer in [1, 1024]"),
    ({"lz_window_size": 8, "lz_buffer_size": 9}, "lz_buffer_size must be an integer in [1, 8]"),
    ({"lz_include_prompt": 1}, "lz_include_prompt must be true or false"),
    ({"lz_cost": "cheap"}, "lz_cost must be"),
    ({"lz_onset": 65}, "lz_onset must be an integer in [0, 64]"),
    ({"lz_penalti": 0.5}, "lz_penalti must be spelt lz_penalty"),
    ({"dry_multiplier": 101}, "dry_multiplier must be a finite number in [0, 100]"),
    ({"dry_sequence_breakers": "abc"}, "dry_sequence_breakers must be"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be an integer"),
    ({"penalty_last_n": 1.5}, "penalty_last_n must be an integer"),
    ({"frequency_penalty": 2.5}, "frequency_penalty must be a finite number in [-2, 2]"),
    ({"proper_tokens": "yes"}, "proper_tokens must be true or false"),
    ({"proper_tokens": True, "ebnf": "root ::= ("}, "proper_tokens must be false with"),
    ({"proper_tokens": True, "regex": "(a"}, "proper_tokens must be false with"),
    ({"lz_penalty": 0.5, "beam_width": 2}, "lz_penalty must be 0 with beam search"),
)
"""Fields that must be refused, and a part of the sentence that must say why."""


@dataclass(frozen=True)
class Request(Case):
    """A case of the tests' with what else a request may have."""

    stop: tuple[str, ...] = ()  # texts that end the output
    count: int = 1  # `n`
    # Fields for which the request must, or if it is hostile may, be refused
    wrong: tuple[tuple[str, Any], ...] = ()

    @property
    def sampling(self) -> Json:
        """Sampling parameters beside the LZ penalty's."""
        return {
            **super().sampling,
            **({"stop": list(self.stop)} if self.stop else {}),
            **({"n": self.count} if self.count > 1 else {}),
        }

    def body(self) -> Json:
        """The request to /generate for the logprobs of the whole vocabulary."""
        body = super().body()
        body["sampling_params"] |= dict(self.wrong)
        return body


@dataclass(frozen=True)
class Action:
    """A request, how it is sent and how it ends."""

    at: float  # when, in seconds after the wave began
    how: str  # one of the names above
    request: Request  # what is asked
    after: float = 0.0  # seconds to what ends it early, or the events of a stream that is left
    reason: str = ""  # what the sentence of a refusal must hold


@dataclass(frozen=True)
class Kill:
    """How a server is killed."""

    at: float  # seconds after the wave began
    whole: bool  # all of its processes, or only the first, which the others must follow
    again: float | None  # seconds after which it is killed while it starts again, or None


@dataclass(frozen=True)
class Wave:
    """Requests and what befalls the server meanwhile."""

    name: str  # configuration, seed and number, which make it again
    actions: tuple[Action, ...]  # in the order of their times
    pauses: tuple[tuple[float, str, float], ...] = ()  # seconds after the begin, mode, and how long
    # Seconds after the begin at which all requests are aborted, or None
    abort_all: float | None = None
    kill: Kill | None = None  # how the server is killed, or None
    flush: bool = False  # whether the prefix cache is flushed when all is answered


@dataclass
class Schedule:
    """Waves for one server configuration."""

    name: str  # the configuration's
    seed: int  # of all that is random
    longest: int = 400  # the most tokens of a prompt and its outputs
    stream_tokens: int = 10  # the most outputs of a stream
    size: int = WAVE_SIZE  # requests in a wave
    # Whether every other wave asks for tokens only, so that chunks are mixed with decodes
    mixes: bool = False
    _prompts: list[list[int]] = field(default_factory=list)

    def wave(self, number: int, *, kill: bool = False) -> Wave:
        """The wave of a number; `kill` has the server killed during it."""
        name = f"{self.name}, seed {self.seed}, wave {number}"
        rng = random.Random(name)
        # Prompts that begin alike meet each other's prefixes in the cache.
        self._prompts = [repetitive(rng, rng.choice((20, 60))) for _ in range(4)]
        gap = rng.choice((0.0, 0.005, 0.02, 0.04))
        at, actions = 0.0, []
        shares = TOKENS_ONLY if self.mixes and number % 2 else SHARES
        for _ in range(self.size):
            at += rng.expovariate(1 / gap) if gap else 0.0
            actions.append(self._action(rng, at, shares))
        killed = Kill(
            rng.uniform(0.5, 6.0),
            rng.random() < 0.5,
            rng.uniform(2.0, 20.0) if rng.random() < 0.3 else None,
        )
        pauses = tuple(
            (rng.uniform(0.2, 6.0), rng.choice(("in_place", "retract")), rng.uniform(0.02, 0.3))
            for _ in range(rng.choice((0, 0, 1, 3)))
        )
        return Wave(
            name,
            tuple(actions),
            tuple(sorted(pauses)),
            rng.uniform(0.5, 5.0) if rng.random() < 0.1 else None,
            killed if kill else None,
            rng.random() < 0.4,
        )

    def _action(self, rng: random.Random, at: float, shares: Mapping[str, float]) -> Action:
        (how,) = rng.choices(list(shares), list(shares.values()))
        request = self._request(rng)
        if how == REFUSED:
            wrong, reason = rng.choice(WRONG)
            request = Request(request.prompt, request.new_tokens, wrong=tuple(wrong.items()))
            return Action(at, how, request, reason=reason)
        if how == HOSTILE:
            fields = tuple(random_fields(rng).items())
            return Action(at, how, Request(request.prompt, request.new_tokens, wrong=fields))
        if how == TOKENS:
            request = replace(request, temperature=0.0)
        if how == ABORT:
            request = replace(request, new_tokens=2 * request.new_tokens + 20)
        if how in (STREAM, HANG_UP, KILLED_CLIENT):
            request = replace(request, new_tokens=min(request.new_tokens, self.stream_tokens))
        if how != ANSWER:
            request = replace(request, count=1)
        # More than max_new_tokens is refused.
        least = min(request.penalties.min_new_tokens, request.new_tokens)
        request = replace(request, penalties=replace(request.penalties, min_new_tokens=least))
        seconds = rng.choice((0.0, 0.02, 0.3, 1.0, 2.0))
        return Action(at, how, request, rng.randint(1, 8) if how == HANG_UP else seconds)

    def _request(self, rng: random.Random) -> Request:
        regex = rng.choice(tuple(FINITE)) if rng.random() < 0.08 else None
        new_tokens = rng.choice((1, 2, 8, 20, 30, 40, 40, 60, 90))
        drawn: Penalties = NO_PENALTIES
        breakers: tuple[str, ...] = ()
        if rng.random() < 0.4:
            drawn, breakers = penalties(rng, new_tokens)
            if rng.random() < 0.6:  # hundreds of tokens hold an e: the oracle takes its time
                breakers = rng.choice(((), ("\n", ":")))
        if regex is not None:  # which would leave no token that may come
            drawn = replace(drawn, no_repeat_ngram_size=0, min_new_tokens=0, stops=())
        lz = parameters(rng)
        if lz.window > 64 and rng.random() < 0.6:
            lz = parameters(rng)
        stop = tuple(rng.sample(STOPS, 2)) if regex is None and rng.random() < 0.06 else ()
        biased = token_ids(rng, 6) if rng.random() < 0.12 else []
        bias = {token: rng.choice((-30.0, 3.5, 20.0)) for token in biased}
        return Request(
            prompt=self._prompt(rng, self.longest - new_tokens),
            new_tokens=new_tokens,
            lz=OFF if rng.random() < 0.2 else lz,
            temperature=rng.choice((0.0, 0.0, 1.0, 0.7, 1.3)),
            favoured=tuple(token_ids(rng, 5)) if rng.random() < 0.5 else (),
            ignore_eos=regex is None and rng.random() < 0.4,
            penalties=drawn,
            breakers=breakers,
            bias=tuple(bias.items()),
            stop=stop,
            constraint=None if regex is None else encodings(regex),
            count=rng.choice((2, 3, 5)) if rng.random() < 0.06 else 1,
        )

    def _prompt(self, rng: random.Random, most: int) -> list[int]:
        length = min(rng.choice((1, 3, 10, 16, 17, 30, 40, 60, 150)), most)
        if rng.random() < 0.3:
            begin = rng.choice(self._prompts)
            return [*begin[: rng.randint(1, len(begin))], *repetitive(rng, length)][:most]
        return repetitive(rng, length)
