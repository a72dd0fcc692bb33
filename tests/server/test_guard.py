"""The loop guard: outputs end at the first token that makes them a loop, in every mode.

Each output is its own witness: by the definition in tests/oracle.py its first loop ends at its last
token, or there is none.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache

import pytest

from bench.http_client import HTTP
from oracle import first_loop
from server.client import OFF, Json, Lz, answers, events, post, post_ok, streaming
from server.configurations import THINKS, on
from server.encodings import encode
from server.endpoints import Endpoint, every_endpoint
from server.launch import Server
from server.model import numbers, tokenizer
from server.prompts import repetitive, token_ids

NEW_TOKENS = 96
THINK_END = "</think>"
ALL_MODES = (
    *("overlap", "no-overlap", "chunked", "tiny-pool", "tiny-pool-mixed", "tp2", "pp2"),
    *("dp-attention", "disaggregated", "eagle-tree", "ngram", "eagle", "disaggregated-eagle"),
    "dflash",
    "dspark",
)
# Their servers have a reasoning parser.
THINKING = (
    *("no-overlap", "mixed-chunk", "tiny-pool", "eagle-tree", "ngram", "disaggregated-eagle"),
    "dflash",
    "dspark",
    "disaggregated-dflash",
)
LOOP: Json = {"max_pattern_size": 64, "min_count": 4}


@dataclass(frozen=True)
class Ask:
    """A request that loops soon, since nearly only a few tokens are sampled."""

    body: Json
    sizes: range
    count: int
    least: int
    numbers: frozenset[int]

    def loop_of(self, outputs: list[int]) -> tuple[int, int, int] | None:
        """The first loop, by the definition."""
        return first_loop(outputs, self.sizes, self.count, self.least, self.numbers)


def asks(rng: random.Random, number: int, action: str = "stop") -> list[Ask]:
    """Requests with patterns of all kinds; half with a penalty, half sampled at temperature 1."""
    return [ask(rng, action) for _ in range(number)]


def ask(rng: random.Random, action: str) -> Ask:
    shortest, longest = sorted(rng.choices(range(1, 25), k=2))
    copies, least = rng.choice((2, 3, 4, 6)), rng.choice((0, 0, 12))
    lz = rng.choice((OFF, Lz(0.15), Lz(0.15, onset=3), OFF))
    ignored = rng.choice((frozenset[int](), numbers()))
    biases = dict.fromkeys(token_ids(rng, rng.choice((1, 2, 3, 6))), 60.0)
    biases |= dict.fromkeys(sorted(ignored)[:3], 57.0)
    detection = {
        "max_pattern_size": longest,
        "min_pattern_size": 0 if shortest == 1 else shortest,
        "min_count": copies,
        "action": action,
        "ignore_numbers": bool(ignored),
    }
    sampling = {
        "max_new_tokens": NEW_TOKENS,
        "min_new_tokens": least,
        "temperature": rng.choice((0.0, 1.0)),
        "ignore_eos": True,
        "logit_bias": {str(token): bias for token, bias in biases.items()},
        "repetition_detection": detection,
        **lz.fields(),
    }
    body = {
        "input_ids": repetitive(rng, rng.randint(4, 60)),
        "sampling_params": sampling,
        "return_logprob": True,
    }
    return Ask(body, range(shortest, longest + 1), copies, least, ignored)


@pytest.mark.each_kind
@on(*ALL_MODES)
def test_an_output_ends_at_the_first_token_of_a_loop(server: Server) -> None:
    rng = random.Random(f"guard {server.config.name}")
    asked = asks(rng, 36)
    stopped = 0
    found = answers(server, [request.body for request in asked])
    for request, answer in zip(asked, found, strict=True):
        outputs, meta = answer["output_ids"], answer["meta_info"]
        loop = request.loop_of(outputs)
        reason = meta["finish_reason"]
        assert meta["completion_tokens"] == len(outputs)
        assert len(meta["output_token_logprobs"]) == len(outputs)
        if len(outputs) == NEW_TOKENS:  # a loop at the last token may have either reason
            assert loop is None or loop[0] == NEW_TOKENS, loop
            assert reason["type"] == "length"
            continue
        assert loop is not None, (len(outputs), reason)
        end, size, begin = loop
        assert end == len(outputs)
        copies = (end - begin) // size
        evidence = {"pattern_size": size, "count": copies, "begin": begin}
        assert reason.pop("matched") == (
            f"repetition_detected pattern_size={size} count={copies} begin={begin}"
        )
        assert reason == {"type": "repetition", **evidence}
        stopped += 1
    assert stopped > len(asked) // 3, stopped


@on("overlap")
def test_lines_that_differ_by_their_numbers_are_a_loop(server: Server) -> None:
    text = "".join(f"The line {n} is like the line before it, and so on.\n" for n in range(10, 30))
    ids = tokenizer().encode(text, add_special_tokens=False)
    sampling = {"regex": re.escape(text), "proper_tokens": True, "max_new_tokens": len(ids)}
    body: Json = {"input_ids": [70, 71, 72], "sampling_params": sampling}
    for ignored in (frozenset[int](), numbers()):
        sampling["repetition_detection"] = {**LOOP, "ignore_numbers": bool(ignored)}
        answer = post_ok(server, "/generate", body)
        loop = first_loop(ids, range(1, 65), 4, 0, ignored)
        assert (loop is None) == (not ignored)
        assert answer["output_ids"] == ids[: loop and loop[0]]


@cache
def think_end() -> list[int]:
    """The tokens that end a thinking section."""
    return encode(THINK_END)


def ended_at(outputs: list[int]) -> int | None:
    """After how many tokens the thinking section is over; None while it goes on."""
    end = think_end()
    places = range(len(end), len(outputs) + 1)
    return next((k for k in places if outputs[k - len(end) : k] == end), None)


def forced_from(outputs: list[int]) -> int:
    """How many of the end's tokens stand at the end of these outputs already."""
    end = think_end()
    return next(k for k in reversed(range(len(end))) if outputs[len(outputs) - k :] == end[:k])


@pytest.mark.each_kind
@on(*THINKING)
def test_a_looping_thinking_section_ends_once(server: Server) -> None:
    rng = random.Random(f"thinking {server.config.name}")
    asked = asks(rng, 24, "end_thinking")
    for request in asked:
        request.body["require_reasoning"] = True
    ended = 0
    found = answers(server, [request.body for request in asked])
    for request, answer in zip(asked, found, strict=True):
        outputs, reason = answer["output_ids"], answer["meta_info"]["finish_reason"]
        over = ended_at(outputs)
        thought = outputs if over is None else outputs[: over - len(think_end())]
        loop = request.loop_of(thought)
        if loop is not None:
            # From there on the end is forced: one token is missing at most, by the limit.
            start = loop[0] - forced_from(outputs[: loop[0]])
            wanted = think_end()[: NEW_TOKENS - start]
            assert outputs[start : start + len(think_end())] == wanted, (loop, outputs)
            ended += 1
        if over is None:
            assert reason["type"] == "length"
            continue
        later = (
            end
            for end in range(max(over + 1, request.least), len(outputs) + 1)
            if first_loop(outputs[:end], request.sizes, request.count, end, request.numbers)
        )
        stop = next(later, None)
        if reason["type"] == "repetition":
            assert stop == len(outputs)
        else:
            assert stop in {None, NEW_TOKENS}
    assert ended > len(asked) // 3, ended


@on(*THINKING)
def test_a_refused_request_with_a_guarded_section_ends_alone(server: Server) -> None:
    """Upstream refuses it before it has the grammar that the guard reads."""
    session = post(server, "/open_session", {"capacity_of_str_len": 1000}).json()
    guard = {**LOOP, "action": "end_thinking"}
    answer = post(
        server,
        "/generate",
        {
            "text": "a",
            "require_reasoning": True,
            "session_params": {"id": session, "rid": "no such request"},
            "sampling_params": {"max_new_tokens": 4, "regex": "a+", "repetition_detection": guard},
        },
    )
    assert answer.status_code == 400, answer.text
    assert post_ok(server, "/generate", {"text": "a", "sampling_params": {"max_new_tokens": 2}})


# How each API ends an output in a loop, by the server's `--lz-loop-finish-reason`.
REASONS: dict[str, Json] = {
    "overlap": {
        "finish_reason": "repetition",
        "status": "incomplete",
        "incomplete_details": {"reason": "repetition"},
        "stop_reason": "stop_sequence",
        "done_reason": "stop",  # upstream calls every end so
    },
    "dp2": {
        "finish_reason": "stop",
        "status": "completed",
        "incomplete_details": None,
        "stop_reason": "end_turn",
        "done_reason": "stop",
    },
    "adapters": {
        "finish_reason": "length",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "stop_reason": "max_tokens",
        "done_reason": "length",
    },
}


@pytest.mark.every_server
@on(*REASONS)
@every_endpoint
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
def test_every_endpoint_reports_the_loop(server: Server, endpoint: Endpoint, stream: bool) -> None:
    """The answer says that the output was a loop, beside another finish reason too."""
    wanted = REASONS[server.config.name]
    fields = {"repetition_detection": LOOP}
    answer = endpoint.send(server, "What is a list?", 300, fields, stream=stream)
    assert answer.status_code == 200, answer.text
    seen, path = events(answer), endpoint.path
    last = seen[-1]
    if path == "/generate":
        reason, outputs = last["meta_info"]["finish_reason"], last["output_ids"]
        assert reason["type"] == wanted["finish_reason"]
        assert reason["matched"].startswith("repetition_detected pattern_size=")
        assert reason.get("length", len(outputs)) == len(outputs) < 300
    elif path == "/v1/responses":
        last = last.get("response", last)
        assert last["status"] == wanted["status"]
        assert last["incomplete_details"] == wanted["incomplete_details"]
        assert last["usage"]["output_tokens"] < 300
    elif path == "/v1/messages":
        reasons = [event.get("delta", event).get("stop_reason") for event in seen]
        assert wanted["stop_reason"] in reasons
    elif path.startswith("/api/"):
        assert last["done_reason"] == wanted["done_reason"]
        assert last.get("eval_count", 0) < 300
    else:
        choices = [choice for event in seen for choice in event["choices"]]
        (ended,) = [choice for choice in choices if choice["finish_reason"]]
        assert ended["finish_reason"] == wanted["finish_reason"]
        assert ended["matched_stop"].startswith("repetition_detected pattern_size=")
        assert ended["stop_reason"] == "repetition_detected"
        assert [choice for choice in choices if "stop_reason" in choice] == [ended]


@pytest.mark.every_server
@on(*REASONS)
def test_a_loop_within_a_call_of_a_tool_leaves_no_call_to_run(server: Server) -> None:
    """Only `stop` reports `tool_calls`, in a stream."""
    wanted = REASONS[server.config.name]["finish_reason"]
    begin = '<tool_call>\n{"name": "f", "arguments": {"v": "'
    schema = {"type": "object", "properties": {"v": {"type": "string"}}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "What is a list?"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        **{"max_tokens": 300, "temperature": 0, "repetition_detection": LOOP},
        "regex": re.escape(begin) + "a+",
    }
    (choice,) = post_ok(server, "/v1/chat/completions", body)["choices"]
    assert choice["finish_reason"] == wanted
    assert not choice["message"].get("tool_calls")
    streamed = events(post(server, "/v1/chat/completions", {**body, "stream": True}))
    choices = [choice for event in streamed for choice in event["choices"]]
    (reason,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
    arguments = "".join(call["function"]["arguments"] or "" for call in calls)
    assert arguments.startswith('{"v": "aa')
    if wanted == "stop":
        assert reason == "tool_calls"
    else:
        assert reason == wanted
        with pytest.raises(json.JSONDecodeError):
            json.loads(arguments)


@on("overlap")
def test_several_outputs_of_a_request_and_streams(server: Server) -> None:
    """n > 1 has a guard for each output; a stream ends with the token that others end with."""
    rng = random.Random("several")
    request = ask(rng, "stop")
    sampling = request.body["sampling_params"] | {"n": 3, "temperature": 1.0}
    body = {**request.body, "sampling_params": sampling}
    for answer in post_ok(server, "/generate", body):
        loop = request.loop_of(answer["output_ids"])
        assert (loop is not None) == (answer["meta_info"]["finish_reason"]["type"] == "repetition")
        assert loop is None or loop[0] == len(answer["output_ids"])
    loops = {"logit_bias": {"70": 60.0}, "repetition_detection": LOOP, "max_new_tokens": NEW_TOKENS}
    with streaming(server, {"input_ids": [71, 72], "sampling_params": loops}) as streamed:
        last = events(streamed)[-1]
    assert last["meta_info"]["finish_reason"]["type"] == "repetition"
    assert len(last["output_ids"]) == LOOP["min_count"]


def counted(server: Server) -> Counter[str]:
    """Our series on /metrics; prometheus_client fails while a process makes its file of metrics."""
    for _ in range(20):
        answer = HTTP.get(f"{server.url}/metrics")
        if answer.is_success:
            break
        time.sleep(0.1)
    assert answer.is_success
    found: Counter[str] = Counter()
    for line in answer.text.splitlines():
        if line.startswith("sglang_lz:"):
            name, _, value = line.rpartition(" ")
            found[name.removeprefix("sglang_lz:")] = int(float(value))
    return found


def place_of_loop(outputs: list[int], reason: str) -> str:
    """Where an output loops, by the recommended setting."""
    sizes, copies = range(1, 513), 20
    if reason == "repetition" or any(
        outputs[len(outputs) - size * copies :] == outputs[-size:] * copies
        for size in sizes
        if size * copies <= len(outputs)
    ):
        return "end"
    return "inside" if first_loop(outputs, sizes, copies) else "nowhere"


@pytest.mark.every_server
@on("mixed-chunk", "tp2")
def test_loops_are_counted_once(server: Server) -> None:
    """By one rank; --lz-observe-loops 1 looks at every output."""
    rng = random.Random(f"metrics {server.config.name}")
    thinks = set(THINKS) <= set(server.config.flags)
    asked = [*asks(rng, 12), *asks(rng, 6, "end_thinking" if thinks else "stop")]
    for i, request in enumerate(asked):
        request.body["require_reasoning"] = i >= 12
        if i % 3 == 0:
            del request.body["sampling_params"]["repetition_detection"]
    before = counted(server)
    answered = answers(server, [request.body for request in asked])
    found = counted(server)
    found.subtract(before)
    wanted: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for request, answer in zip(asked, answered, strict=True):
        sampling, outputs = request.body["sampling_params"], answer["output_ids"]
        reason = answer["meta_info"]["finish_reason"]
        onset = sampling.get("lz_onset")
        penalty = "off" if onset is None else "onset" if onset else "always"
        wanted[f'requests_total{{endpoint="/generate",penalty="{penalty}"}}'] += 1
        place = place_of_loop(outputs, reason["type"])
        wanted[f'observed_outputs_total{{loop="{place}",penalty="{penalty}"}}'] += 1
        if reason["type"] == "repetition":
            wanted[f'outputs_in_loop_total{{action="stop",penalty="{penalty}"}}'] += 1
            tokens[penalty] += len(outputs) - reason["begin"] - reason["pattern_size"]
        if sampling.get("repetition_detection", {}).get("action") == "end_thinking":
            over = ended_at(outputs)
            loop = request.loop_of(outputs if over is None else outputs[: over - len(think_end())])
            key = f'outputs_in_loop_total{{action="end_thinking",penalty="{penalty}"}}'
            wanted[key] += loop is not None and loop[0] < len(outputs)
    for name, value in found.items():
        if name.startswith(("requests", "observed", "outputs")):
            assert value == wanted[name], name
    assert sum(wanted.values()) == sum(
        value
        for name, value in found.items()
        if name.startswith(("requests", "observed", "outputs"))
    )
    for penalty, least in tokens.items():
        assert found[f'tokens_in_loops_total{{penalty="{penalty}"}}'] >= least > 0


SAMPLES: tuple[tuple[str, Json, int], ...] = (
    ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 3, "n": 2}}, 2),
    ("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 3, "n": 5}}, 10),
    ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}}, 1),
    ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 0}}, 0),
    ("/v1/completions", {"prompt": "a", "max_tokens": 3, "n": 2}, 2),
)


@on("mixed-chunk", "tp2")
def test_every_output_is_observed_once(server: Server) -> None:
    """Upstream runs a prompt once more to cache it, before it samples it several times."""
    for path, body, outputs in SAMPLES:
        before = counted(server)
        post_ok(server, path, {"model": "m", **body} if path.startswith("/v1") else body)
        found = counted(server)
        found.subtract(before)
        observed = sum(n for name, n in found.items() if name.startswith("observed_outputs"))
        assert observed == outputs, (path, body)


@on("mixed-chunk", "eagle-tree", "dflash", "dspark")
def test_with_a_grammar(server: Server) -> None:
    """A loop that the grammar allows stops; after a thought that was ended the grammar holds."""
    rng = random.Random(f"grammar {server.config.name}")
    biased = {str(token): 60.0 for token in token_ids(rng, 2)}
    body = {"input_ids": repetitive(rng, 20), "return_logprob": True}
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "repetition_detection": LOOP}
    endless = post_ok(
        server, "/generate", {**body, "sampling_params": {**sampling, "regex": "[ab]{60,400}"}}
    )
    loop = first_loop(endless["output_ids"], range(1, 65), 4)
    assert endless["meta_info"]["finish_reason"]["type"] == "repetition"
    assert loop is not None
    assert loop[0] == len(endless["output_ids"])
    ends = {"repetition_detection": {**LOOP, "action": "end_thinking"}, "logit_bias": biased}
    thought = post_ok(
        server,
        "/generate",
        {
            **body,
            "require_reasoning": True,
            "sampling_params": {**sampling, **ends, "regex": "yes, it is"},
        },
    )
    assert thought["text"].endswith(f"{THINK_END}yes, it is"), thought["text"]
    over = ended_at(thought["output_ids"])
    assert over is not None
    begin = over - len(think_end())
    assert first_loop(thought["output_ids"][:begin], range(1, 65), 4) is not None
