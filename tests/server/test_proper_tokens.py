"""`proper_tokens` on servers: what may come next is what the tokenizer itself would spell."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jsonschema
import pytest

from bench.http_client import lines
from server.client import (
    OFF,
    Lz,
    answers,
    flush_cache,
    post,
    post_ok,
    refusal,
    request_body,
    streaming,
)
from server.configurations import COMBINED, SCHEDULERS, SPECULATION, THINKS, on
from server.contract import TOLERANCE, Case, at_once, check_together
from server.encodings import FINITE, decode, encode, encodings, tokenizer
from server.endpoints import Endpoint, every_endpoint
from server.launch import Server
from server.prompts import repetitive

PROPER = {"proper_tokens": True}
THINK_END = "</think>"
FIELDS = {
    "name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer"},
    "active": {"type": "boolean"},
    "role": {"enum": ["admin", "user", "guest"]},
    "email": {"type": "string", "maxLength": 12},
    "score": {"type": "number"},
    "verified": {"type": "boolean"},
    "country": {"enum": ["France", "Japan", "Brazil"]},
    "notes": {"type": "string", "maxLength": 12},
    "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "required": list(FIELDS),
    "additionalProperties": False,
}
RECURSIVE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
PATTERNS = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}(-[0-9]{1,3})?$"}},
    "required": ["code"],
    "additionalProperties": False,
}
ENDLESS = {**RECURSIVE, "required": ["next"]}
SUM = 'root ::= root "+" term | term\nterm ::= "(" root ")" | [0-9]{1,3}'
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<f>",
        "content": {"type": "regex", "pattern": "[a-z]{2,9}"},
        "end": "</f>",
    },
}


@cache
def closing() -> dict[str, Any]:
    """With it, most outputs under a recursive constraint end."""
    return {"logit_bias": {str(encode(text)[0]): 8.0 for text in ("}", '"', ")")}}


def without_end(answer: dict[str, Any]) -> list[int]:
    """The tokens of an answer before the end of sequence."""
    outputs = answer["output_ids"]
    return outputs[:-1] if outputs[-1] == tokenizer().eos_token_id else outputs


def assert_proper(answer: dict[str, Any]) -> str:
    """An answer that has ended is its text's own encoding; returns the text."""
    outputs = without_end(answer)
    assert answer["meta_info"]["finish_reason"]["type"] == "stop", answer["meta_info"]
    text = decode(outputs)
    assert encode(text) == outputs, (text, outputs, encode(text))
    return text


@on(
    *("overlap", "no-overlap", "chunked", "mixed-chunk", "tp2", "eagle-tree", "ngram", "eagle"),
    *("disaggregated", "dflash", "dspark", "disaggregated-dflash", "disaggregated-dspark"),
)
@pytest.mark.parametrize("regex", FINITE, ids=["dates", "spaces", "names", "nfc"])
def test_allowed_next_tokens(server: Server, regex: str) -> None:
    """At every position, beside the penalty: only what an encoding of the language goes on with."""
    rng = random.Random(f"proper {regex}")
    ways = ((OFF, 1.0), (Lz(0.5), 0.0), (Lz(1.5, 12, 4, True, "rate"), 1.0))
    proper: Any = {"ignore_eos": False, "constraint": encodings(regex)}
    cases = [Case(repetitive(rng, 20), 40, *way, **proper) for way in ways]
    for sample in check_together(server, cases, f"{server.config.name}: proper tokens"):
        assert sample.outputs[-1] == tokenizer().eos_token_id


def constraint(rng: random.Random) -> dict[str, Any]:
    """The fields of one constraint, or of none."""
    return rng.choice(
        [
            {"json_schema": json.dumps(SCHEMA)},
            {"json_schema": json.dumps(PATTERNS)},
            {"json_schema": json.dumps(RECURSIVE), **closing()},
            {"json_schema": '{"type": "object"}', **closing()},
            {"regex": r"[0-9]{4}-[0-9]{2}-[0-9]{2}"},
            {"regex": r"[A-Z][a-z]{1,8}( [A-Z][a-z]{1,8}){0,2}"},
            {"regex": r"(.|\n){0,40}"},
            {"ebnf": SUM, **closing()},
            {"structural_tag": json.dumps(TAG)},
            {"max_new_tokens": 30},
        ]
    )


def penalties(rng: random.Random) -> dict[str, Any]:
    """The fields of some penalties, or of none."""
    return rng.choice(
        [
            {},
            {"lz_penalty": 0.6},
            {"lz_penalty": 1.0, "lz_window_size": 8, "frequency_penalty": 0.5},
            {"lz_penalty": 0.3, "lz_onset": 3, "dry_multiplier": 0.8},
        ]
    )


def is_sum(text: str) -> bool:
    """Whether a text is in the language of `SUM`."""
    size = -1
    while len(text) != size:
        size = len(text)
        text = re.sub(r"\((N|[0-9]{1,3})(\+(N|[0-9]{1,3}))*\)", "N", text)
    return re.fullmatch(r"(N|[0-9]{1,3})(\+(N|[0-9]{1,3}))*", text) is not None


def run_mixed(server: Server, rng: random.Random, count: int, **body: Any) -> None:
    """Requests at once: with proper tokens, with upstream's grammars, and without either."""
    bodies = []
    for i in range(count):
        fields = {"temperature": 1.0, "max_new_tokens": 300, **constraint(rng), **penalties(rng)}
        if i % 4:
            fields |= PROPER
        bodies.append({"input_ids": repetitive(rng, 20), "sampling_params": fields, **body})
    ended = 0
    for sent, answer in zip(bodies, answers(server, bodies), strict=True):
        fields = sent["sampling_params"]
        if "proper_tokens" not in fields or answer["meta_info"]["finish_reason"]["type"] != "stop":
            continue
        text = assert_proper(answer)
        ended += 1
        if "json_schema" in fields:
            jsonschema.validate(json.loads(text), json.loads(fields["json_schema"]))
        elif "ebnf" in fields:
            assert is_sum(text), text
        elif "regex" in fields:
            assert re.fullmatch(fields["regex"], text), text
        elif "structural_tag" in fields:
            assert re.fullmatch("<f>[a-z]{2,9}</f>", text), text
    assert ended > count // 3


@pytest.mark.each_kind
@on(
    *(*SCHEDULERS, "tiny-pool", "tiny-pool-mixed", "adapters"),
    *("tp2", "dp2", "pp2", "dp-attention", "disaggregated", *SPECULATION, *COMBINED),
)
def test_outputs_are_the_tokenizers_own(server: Server) -> None:
    rng = random.Random(f"proper mixed {server.config.name}")
    for _ in range(4):
        run_mixed(server, rng, 16)


@on("ngram")
def test_forced_tokens_are_drafts(server: Server) -> None:
    """A run of tokens of which there is only one each costs a forward pass for each tree, whoever
    else is in the batch."""
    text = "The quick brown fox jumps over the lazy dog"
    longest = 8  # the longest path of a tree
    others = [{"max_new_tokens": 60, "ignore_eos": True, "temperature": t} for t in (0.0, 1.0)]

    def check_one(temperature: float) -> None:
        fields = {"regex": f"(a|b){text}(c|d)", "max_new_tokens": 100, **PROPER}
        fields["temperature"] = temperature
        bodies = [
            {"text": "Say it", "sampling_params": own} for own in (others[0], fields, others[1])
        ]
        answer = answers(server, bodies)[1]
        outputs = without_end(answer)
        assert text in assert_proper(answer)
        fewest = math.ceil((len(outputs) + 1) / longest)
        steps = answer["meta_info"]["spec_verify_ct"]
        assert steps <= fewest + 3, (answer["meta_info"], len(outputs))
        assert len(outputs) > (longest - 1) / 2 * steps

    at_once(check_one, (0.0, 0.1, 1.0))


@on("no-overlap", "eagle-tree", "ngram", "dflash", "dspark")
def test_the_constraint_begins_after_the_thinking(server: Server) -> None:
    assert set(THINKS) <= set(server.config.flags)
    end = encode(THINK_END)
    fields = {
        "regex": "yes, it is( not)?",
        "logit_bias": {str(encode("a")[0]): 100.0},  # it thinks in a loop
        "repetition_detection": {"max_pattern_size": 4, "min_count": 4, "action": "end_thinking"},
        "max_new_tokens": 60,
        **PROPER,
    }
    body = {"text": "Is it?", "require_reasoning": True, "sampling_params": fields}
    answer = post_ok(server, "/generate", body)
    outputs = without_end(answer)
    over = next(i + len(end) for i in range(len(outputs)) if outputs[i : i + len(end)] == end)
    assert outputs[over:] in (encode("yes, it is"), encode("yes, it is not")), answer["text"]


@on("overlap")
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
@every_endpoint
def test_each_endpoint_takes_the_field(server: Server, endpoint: Endpoint, stream: bool) -> None:
    """Alone, without a constraint, on every endpoint: the greedy text is all that comes back."""
    fields = {**PROPER, "lz_penalty": 1.0, "lz_window_size": 8}
    assert endpoint.answer(server, "once upon a time", 20, fields, stream=stream)
    wrong = endpoint.send(server, "once", 5, {"proper_tokens": "yes"}, stream=stream)
    assert wrong.status_code == 400
    assert "proper_tokens must be true or false" in wrong.text


DEEP = '{"type": "object", "properties": {"a": ' * 400 + '{"type": "string"}' + "}}" * 400
REFUSED = {
    "lookahead": ({"ebnf": 'root ::= x "c"\nx ::= "a" (="c")'}, "lookahead"),
    "broken ebnf": ({"ebnf": "root ::= ("}, "cannot be read"),
    "pattern": (
        {"json_schema": '{"type": "string", "pattern": "(?=a)b"}'},
        "it has assert, which is not covered",
    ),
    "broken regex": ({"regex": "(a"}, "cannot be read"),
    "broken schema": ({"json_schema": "{"}, "cannot be read"),
    "not text": ({"regex": "a\0b"}, "NUL"),
    "too large": ({"regex": "((a{100}){100}){100}"}, "places"),
    "too deep": ({"json_schema": DEEP}, "deeper than"),
    "too long": ({"regex": "a" * 70_000}, "70000 characters"),
}
HARD = (
    r"[^\n]*입니다",
    r"[^a-z]*가",
    ".*\u0323",
    "([ab]{0,100}){0,300}",
    "(abcdefghijklmnopqrstuvwxyz0123456789){500}",
    "[ab]*a[ab]{16}",
    "([a-z]{0,9} ?){0,9}[^a-z]*가",
)


@on("overlap")
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
@pytest.mark.parametrize("case", REFUSED)
def test_requests_that_cannot_be_exact_are_refused(server: Server, case: str, stream: bool) -> None:
    fields, reason = REFUSED[case]
    messages = [{"role": "user", "content": "a"}]
    chat = {"model": "x", "messages": messages, "prompt": "a", **fields, **PROPER}
    for path, body in (
        ("/generate", {"text": "a", "sampling_params": {**fields, **PROPER}}),
        ("/v1/chat/completions", chat),
        ("/v1/completions", chat),
    ):
        said = refusal(server, path, {**body, "stream": stream})
        assert "proper_tokens must be false with" in said, said
        assert reason in said, said


@on("overlap")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ebnf": 'root ::= x root "a" | "b"\nx ::= "" | "(" x ")"'}, "at its beginning"),
        ({"json_schema": json.dumps(ENDLESS)}, "it allows no text"),
        # What NFC changes is never an encoding: found when the automata meet.
        ({"regex": "xe\u0301y"}, "no text that the tokenizer would spell"),
    ],
    ids=["left recursion", "endless", "no proper text"],
)
def test_constraints_that_do_not_compile_are_refused(
    server: Server, fields: dict[str, Any], reason: str
) -> None:
    body = {"text": "a", "sampling_params": {**fields, **PROPER}}
    assert reason in refusal(server, "/generate", body)


@on("overlap", "eagle-tree", "ngram")
def test_hard_constraints_do_not_delay_other_requests(server: Server) -> None:
    """Served or refused with a reason, while a request beside them goes on, and one after them."""

    def send(regex: str) -> Any:
        fields = {"regex": regex, "max_new_tokens": 16, "temperature": 1.0, **PROPER}
        return post(server, "/generate", {"text": "a", "sampling_params": fields})

    with ThreadPoolExecutor(len(HARD)) as pool:
        pending = [pool.submit(send, regex) for regex in HARD]
        plain = {"text": "once", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
        beside = 0
        while not all(answer.done() for answer in pending):
            post_ok(server, "/generate", plain)
            beside += 1
    assert beside
    for regex, future in zip(HARD, pending, strict=True):
        answer = future.result()
        assert answer.status_code in (200, 400), (regex, answer.text)
        assert answer.status_code == 200 or "proper_tokens" in answer.text, answer.text
    body = {"text": "a", "sampling_params": {"regex": "[a-z]{1,5}", **PROPER}}
    assert re.fullmatch("[a-z]{1,5}", post_ok(server, "/generate", body)["text"])


LONGEST = itertools.count(5000)


def given_up() -> str:
    """A regex that no other test has, for a search of the same one goes on from what was found.

    Behind "time" a search meets nothing but dead ends, more than it may look at. Before it nothing
    tells of that, for "q" leads to an end.
    """
    return f"Once upon a time(q|b[ae 1\\n.']{{0,{next(LONGEST)}}}e\u0301)"


def assert_given_up(server: Server) -> None:
    """A constraint is given up in the middle of an output; an answer and a stream tell why."""

    def send(stream: bool) -> Any:
        fields = {"regex": given_up(), "max_new_tokens": 40, **PROPER}
        body = {"text": "Say", "sampling_params": fields, "stream": stream}
        return post(server, "/generate", body)

    answer = send(stream=False)
    assert answer.status_code == 400, answer.text
    assert "proper_tokens: the constraint was given up here" in answer.text
    events = send(stream=True).text.split("data: ")
    told = [i for i, event in enumerate(events) if "the constraint was given up here" in event]
    assert told, events
    # Of a verify step that ends so, no token counts. A slow server may send no event before.
    texts = [json.loads(event)["text"] for event in events[1 : told[0]]]
    assert all("Once upon a time".startswith(text) for text in texts), events
    assert "[DONE]" in events[-1], events


@on("overlap", "tp2", "eagle-tree", "ngram", "eagle-tp2", "pp2", "dflash", "dspark")
def test_a_search_that_takes_too_much_ends_its_request(server: Server) -> None:
    """On all ranks and stages at the same token, so that they go on together."""
    assert_given_up(server)
    body = {"text": "a", "sampling_params": {"regex": "[a-z]{1,5}", **PROPER}}
    assert re.fullmatch("[a-z]{1,5}", post_ok(server, "/generate", body)["text"])


SLOW = itertools.count(2400)


def slow() -> str:
    """A regex that no other test has; the search behind "time" takes half of the steps that it may
    take, 40 ms on a fast machine and some tenths of a second on a slow one."""
    return f"Once upon a time(q|b[ae 1\\n.']{{0,{next(SLOW)}}}e\u0301)( over| under){{4}}"


@pytest.mark.each_kind
@on(
    *("overlap", "no-overlap", "chunked", "mixed-chunk", "tp2", "eagle-tree", "ngram", "eagle"),
    *("dp-attention", "dflash", "dspark", "pp2", "disaggregated"),
)
def test_a_request_pauses_while_its_next_tokens_are_searched_for(server: Server) -> None:
    """It continues like the next request with the same constraint, which need not pause."""
    can_pause = server.config.name not in ("pp2", "disaggregated")
    pauses = answer_twice(server)
    # On a fast machine a search may be over before its request has to pause, unless others search
    # at the same time.
    for others in (1, 3, 7, 15, 15) if can_pause else ():
        if pauses:
            break
        with ThreadPoolExecutor(others) as pool:
            beside = [pool.submit(answer_twice, server) for _ in range(others)]
            pauses = answer_twice(server)
            pauses += sum(one.result() for one in beside)
    assert (pauses > 0) == can_pause, "every search was over before its request had to pause"


def answer_twice(server: Server) -> int:
    """Check that a new constraint's answer equals the next one; return how often it paused."""
    fields = {"regex": slow(), "ignore_eos": False, **PROPER}
    body = request_body([5, 6, 7, 8], 40, Lz(0.5, 64, 16, True), **fields)
    body["logprob_start_len"] = 0
    both = [post_ok(server, "/generate", body) for _ in range(2)]
    paused, straight = both
    assert paused["output_ids"] == straight["output_ids"]
    assert assert_proper(paused).startswith("Once upon a timeq ")
    for kind, count in (("input", 4), ("output", len(paused["output_ids"]))):
        first, second = (
            [row[0] for row in answer["meta_info"][f"{kind}_token_logprobs"]] for answer in both
        )
        assert len(first) == len(second) == count
        deviations = [abs((a or 0) - (b or 0)) for a, b in zip(first, second, strict=True)]
        assert max(deviations) < TOLERANCE, (kind, deviations)
    pauses = [answer["meta_info"]["num_retractions"] for answer in both]
    if server.config.name != "dp-attention":  # there another scheduler has the second one
        assert pauses[1] == 0
    return pauses[0]


@on("overlap")
def test_other_requests_during_a_pause(server: Server) -> None:
    """Its next tokens are searched for while others go on; some of them pause, too."""
    pauses = answer_together(server)
    for _ in range(5):  # on a fast machine a search may be over before its request has to pause
        if pauses > 2:
            break
        pauses = answer_together(server)
    assert pauses > 2


def answer_together(server: Server) -> int:
    """Check the answers of requests with new constraints, and of others beside them; return how
    often they paused."""
    regex = slow()
    bodies = [
        request_body([i, 6, 7], 60, OFF, ignore_eos=False, **fields)
        for i in range(5, 9)
        for fields in ({"regex": regex, **PROPER}, {"regex": slow(), **PROPER}, {})
    ]
    found = answers(server, bodies)
    for body, answer in zip(bodies, found, strict=True):
        if "regex" in body["sampling_params"]:
            assert assert_proper(answer).startswith("Once upon a timeq ")
    return sum(answer["meta_info"]["num_retractions"] for answer in found)


@on("overlap")
@pytest.mark.parametrize("how", ["abort", "leave"])
def test_a_client_that_disconnects_during_a_search(server: Server, how: str) -> None:
    """Its request may have paused. The next client is served as if it had never been there."""
    fields = {"regex": given_up(), "max_new_tokens": 40, **PROPER}
    rid = f"{how} {time.monotonic()}"
    body = {"text": "Say", "sampling_params": fields, "rid": rid}
    with streaming(server, body) as answer:
        events = lines(answer)
        assert any(b'"text"' in event for event in events)
        if how == "abort":
            assert post(server, "/abort_request", {"rid": rid}).is_success
            assert any(b"[DONE]" in event for event in events)
    flush_cache(server)  # nothing of it stays in the queue
    assert_given_up(server)


NAMED = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@on("overlap")
@pytest.mark.parametrize(
    ("response_format", "schema", "asked"),
    [
        (NAMED, SCHEMA, {"max_tokens": 1900}),
        ({"type": "json_object"}, {"type": "object"}, {"max_tokens": 120, "n": 16}),
    ],
    ids=["json_schema", "json_object"],
)
def test_json_of_chats(
    server: Server, response_format: dict[str, Any], schema: dict[str, Any], asked: dict[str, Any]
) -> None:
    chat = {
        "model": "x",
        "messages": [{"role": "user", "content": "a person"}],
        "temperature": 1.0,
        "response_format": response_format,
        **asked,
        **closing(),
        **PROPER,
    }
    choices = post_ok(server, "/v1/chat/completions", chat)["choices"]
    ended = [choice for choice in choices if choice["finish_reason"] == "stop"]
    assert len(ended) > len(choices) // 4
    for choice in ended:
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


@on("no-overlap")
def test_the_tokenizer_is_prepared_at_start(server: Server) -> None:
    assert "--prepare-proper-tokens" in server.config.flags
    deadline = time.monotonic() + 300
    while "Proper tokens ready" not in server.log():
        assert time.monotonic() < deadline
        time.sleep(0.5)
