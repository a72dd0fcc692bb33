"""`proper_tokens` on servers: what may come next is what the tokenizer itself would spell."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from bench.http_client import lines
from server.client import (
    OFF,
    Lz,
    flush_cache,
    generate,
    post,
    post_ok,
    request_body,
    streaming,
    to_sample,
)
from server.configurations import THINKS, on
from server.contract import TOLERANCE, at_once, check
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
RECURSIVE = {
    "type": "object",
    "properties": {"next": {"$ref": "#"}},
    "additionalProperties": False,
}
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
    prompts = [repetitive(rng, 20) for _ in ways]

    def check_one(prompt: list[int], way: tuple[Lz, float]) -> None:
        lz, temperature = way
        sample = generate(
            server,
            prompt,
            40,
            lz,
            temperature=temperature,
            ignore_eos=False,
            regex=regex,
            **PROPER,
        )
        assert sample.outputs[-1] == tokenizer().eos_token_id
        mode = f"{server.config.name}: proper tokens"
        transform = encodings(regex).transform
        check(server, sample, lz, mode, temperature=temperature, transform=transform)

    at_once(check_one, prompts, ways)


@on("overlap", "ngram")
def test_sessions(server: Server) -> None:
    check_session(server, streaming=False)


@on("overlap", "no-overlap")
def test_streaming_sessions(server: Server) -> None:
    check_session(server, streaming=True)


def check_session(server: Server, *, streaming: bool) -> None:
    """Each turn's constraint begins with its own output."""
    rng = random.Random(f"proper session {streaming}")
    opened = {"capacity_of_str_len": 5000, "streaming": streaming}
    session = post_ok(server, "/open_session", opened)
    context: list[int] = []
    previous = None
    mode = f"{server.config.name}: proper tokens in a session"
    for regex, lz in itertools.product(FINITE, (OFF, Lz(0.5, 512, 32, True))):
        appended = repetitive(rng, 8)
        fields = {"regex": regex, "ignore_eos": False, **PROPER}
        body = request_body(appended, 40, lz, **fields)
        body["session_params"] = {"id": session, "rid": previous}
        answer = post_ok(server, "/generate", body)
        previous = answer["meta_info"]["id"]
        context += appended
        sample = to_sample(context, answer)
        assert sample.outputs[-1] == tokenizer().eos_token_id
        check(server, sample, lz, mode, transform=encodings(regex).transform)
        context += sample.outputs
    assert post(server, "/close_session", {"session_id": session}).is_success


def constraint(rng: random.Random) -> dict[str, Any]:
    """The fields of one constraint, or of none."""
    return rng.choice(
        [
            {"json_schema": json.dumps(SCHEMA)},
            {"json_schema": json.dumps(PATTERNS)},
            {"json_schema": json.dumps(RECURSIVE)},
            {"json_schema": '{"type": "object"}'},
            {"regex": r"[0-9]{4}-[0-9]{2}-[0-9]{2}"},
            {"regex": r"[A-Z][a-z]{1,8}( [A-Z][a-z]{1,8}){0,2}"},
            {"regex": r"(.|\n){0,40}"},
            {"ebnf": SUM},
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
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda one: post_ok(server, "/generate", one), bodies))
    ended = 0
    for sent, answer in zip(bodies, answers, strict=True):
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
    *(
        "overlap",
        "no-overlap",
        "chunked",
        "mixed-chunk",
        "tiny-pool",
        "tiny-pool-mixed",
        "adapters",
    ),
    *("tp2", "dp2", "pp2", "dp-attention", "dp-attention-eagle3", "dp-attention-dspark"),
    *("eagle-tree", "ngram", "eagle", "eagle-adaptive", "eagle-tp2", "dflash", "dflash-tp2"),
    *("dspark", "dspark-tp2", "disaggregated", "disaggregated-eagle", "disaggregated-dflash"),
    "disaggregated-dspark",
)
def test_outputs_are_the_tokenizers_own(server: Server) -> None:
    rng = random.Random(f"proper mixed {server.config.name}")
    for _ in range(4):
        run_mixed(server, rng, 16)


@on("overlap")
def test_recursive_constraints(server: Server) -> None:
    """Many outputs at once: each that ends is proper, and what its constraint allows."""
    ended = 0
    for constraint in (
        {"response_format": {"type": "json_object"}},
        {"json_schema": json.dumps(RECURSIVE)},
        {"ebnf": SUM},
    ):
        bias = {str(encode(text)[0]): 8.0 for text in ("}", '"', ")")}  # so that most of them end
        fields = {"temperature": 1.0, "logit_bias": bias, **PROPER}
        if "response_format" in constraint:
            body = {"model": "x", "messages": [{"role": "user", "content": "JSON"}], "n": 16}
            body |= {"max_tokens": 120, **constraint, **fields}
            answer = post_ok(server, "/v1/chat/completions", body)
            for choice in answer["choices"]:
                if choice["finish_reason"] == "stop":
                    assert isinstance(json.loads(choice["message"]["content"]), dict)
                    ended += 1
            continue
        fields |= {"n": 32, "max_new_tokens": 120, "ignore_eos": False, **constraint}
        for answer in post_ok(server, "/generate", {"text": "Say", "sampling_params": fields}):
            if answer["meta_info"]["finish_reason"]["type"] != "stop":
                continue
            text = assert_proper(answer)
            ended += 1
            if "ebnf" in constraint:
                assert is_sum(text), text
            else:
                jsonschema.validate(json.loads(text), RECURSIVE)
    assert ended > 20


@on("overlap")
def test_several_outputs_of_one_request(server: Server) -> None:
    fields = {"n": 4, "temperature": 1.5, "max_new_tokens": 60, "regex": "[a-z ]{5,30}", **PROPER}
    body = {"text": "A date: ", "sampling_params": fields}
    texts = {assert_proper(answer) for answer in post_ok(server, "/generate", body)}
    assert len(texts) > 1


@pytest.mark.each_kind
@on(
    *("eagle-tree", "ngram", "eagle", "eagle-tp2", "dflash", "dspark"),
    *("dp-attention-eagle3", "dp-attention-dspark"),
)
def test_forced_tokens_are_drafts(server: Server) -> None:
    """A run of tokens of which there is only one each costs a forward pass for each tree, whoever
    else is in the batch."""
    text = "The quick brown fox jumps over the lazy dog"
    longest = 4  # the longest path of a tree, or a block
    if server.config.name == "ngram":
        longest = 8
    elif server.config.draft in ("dflash", "dspark"):
        longest = 6
    others = [{"max_new_tokens": 60, "ignore_eos": True, "temperature": t} for t in (0.0, 1.0)]

    def check_one(temperature: float) -> None:
        fields = {"regex": f"(a|b){text}(c|d)", "max_new_tokens": 100, **PROPER}
        fields["temperature"] = temperature
        bodies = [
            {"text": "Say it", "sampling_params": own} for own in (others[0], fields, others[1])
        ]
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(lambda body: post_ok(server, "/generate", body), bodies))
        answer = answers[1]
        outputs = without_end(answer)
        assert text in assert_proper(answer)
        fewest = math.ceil((len(outputs) + 1) / longest)
        steps = answer["meta_info"]["spec_verify_ct"]
        assert steps <= fewest + 3, (answer["meta_info"], len(outputs))
        assert len(outputs) > (longest - 1) / 2 * steps

    at_once(check_one, (0.0, 0.1, 1.0))  # a drafter is surer the lower it is


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
    body = {"text": "a", "sampling_params": {**fields, **PROPER}, "stream": stream}
    answer = post(server, "/generate", body)
    assert answer.status_code == 400, answer.text
    assert "proper_tokens must be false with" in answer.text
    assert reason in answer.text, answer.text
    chat = {
        "model": "x",
        "messages": [{"role": "user", "content": "a"}],
        "stream": stream,
        **PROPER,
        **{name: value for name, value in fields.items() if name != "json_schema"},
    }
    if "json_schema" in fields:
        if case == "broken schema":
            return
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": json.loads(fields["json_schema"])},
        }
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {**chat, "prompt": "a"}),
    ):
        answer = post(server, path, body)
        assert answer.status_code == 400, (path, answer.text)
        assert reason in answer.text, answer.text


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
    answer = post(server, "/generate", {"text": "a", "sampling_params": {**fields, **PROPER}})
    assert answer.status_code == 400, answer.text
    assert reason in answer.text


@on("overlap", "eagle-tree", "ngram")
def test_hard_constraints_do_not_delay_other_requests(server: Server) -> None:
    """Served or refused with a reason, while a request beside them goes on, and one after them."""

    def send(regex: str) -> Any:
        fields = {"regex": regex, "max_new_tokens": 16, "temperature": 1.0, **PROPER}
        return post(server, "/generate", {"text": "a", "sampling_params": fields})

    with ThreadPoolExecutor(len(HARD)) as pool:
        answers = [pool.submit(send, regex) for regex in HARD]
        plain = {"text": "once", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
        beside = 0
        while not all(answer.done() for answer in answers):
            post_ok(server, "/generate", plain)
            beside += 1
    assert beside
    for regex, future in zip(HARD, answers, strict=True):
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
    answers = [post_ok(server, "/generate", body) for _ in range(2)]
    paused, straight = answers
    assert paused["output_ids"] == straight["output_ids"]
    assert assert_proper(paused).startswith("Once upon a timeq ")
    for kind, count in (("input", 4), ("output", len(paused["output_ids"]))):
        first, second = (
            [row[0] for row in answer["meta_info"][f"{kind}_token_logprobs"]] for answer in answers
        )
        assert len(first) == len(second) == count
        deviations = [abs((a or 0) - (b or 0)) for a, b in zip(first, second, strict=True)]
        assert max(deviations) < TOLERANCE, (kind, deviations)
    pauses = [answer["meta_info"]["num_retractions"] for answer in answers]
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
    with ThreadPoolExecutor(12) as pool:
        bodies = [
            request_body([i, 6, 7], 60, OFF, ignore_eos=False, **fields)
            for i in range(5, 9)
            for fields in ({"regex": regex, **PROPER}, {"regex": slow(), **PROPER}, {})
        ]
        answers = list(pool.map(lambda body: post_ok(server, "/generate", body), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        if "regex" in body["sampling_params"]:
            assert assert_proper(answer).startswith("Once upon a timeq ")
    return sum(answer["meta_info"]["num_retractions"] for answer in answers)


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


@on("overlap")
def test_json_of_chats(server: Server) -> None:
    chat = {
        "model": "x",
        "messages": [{"role": "user", "content": "a person"}],
        "temperature": 1.0,
        "max_tokens": 1900,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": SCHEMA},
        },
        **PROPER,
    }
    answer = post_ok(server, "/v1/chat/completions", chat)
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), SCHEMA)


@on("no-overlap")
def test_the_tokenizer_is_prepared_at_start(server: Server) -> None:
    assert "--prepare-proper-tokens" in server.config.flags
    deadline = time.monotonic() + 300
    while "Proper tokens ready" not in server.log():
        assert time.monotonic() < deadline
        time.sleep(0.5)
