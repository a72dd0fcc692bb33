"""The attacks: what is sent, how, and to which servers. A new one is a line of `attacks`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Body = dict[str, Any]

DEMO, LARGE = "demo", "large"
BOTH = (DEMO, LARGE)
ON_LARGE = (
    *("ids", "n-grams, proper", "least tokens", "four", "many s", "searches", "composed"),
    *("counted", "rules", "breakers", "histories", "deep", "schemas", "huge texts"),
    *("all logprobs", "random constraint"),
)
"""Beginnings of the names of the attacks that a large vocabulary may make worse."""
VOCABULARY = {DEMO: 2048, LARGE: 100_000}
"""Tokens that a server's model has; the large one has a few more."""

LONG = 1000
"""Tokens of a prompt that takes longer to read than ordinary requests do."""

ORDINARY = "-"
"""In the place of the item of an attack that is none."""

ANSWER, STREAM, LEAVE, ABORT = "answer", "stream", "leave", "abort"
"""How a request ends: with its answer, whole or streamed; by a client that leaves; by an abort."""

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
RESPONSES = "/v1/responses"


@dataclass(frozen=True)
class Request:
    """A request of an attack."""

    body: Any  # sent as JSON, bytes as they are; a function makes what is large when it is sent
    path: str = GENERATE  # of the route, for POST
    how: str = ANSWER  # one of the ways above
    after: float = 0.5  # seconds to a `LEAVE` or `ABORT`

    @property
    def content(self) -> bytes:
        """What is sent; NaN, infinities and lone surrogates as Python writes them."""
        body = self.body() if callable(self.body) else self.body
        return body if isinstance(body, bytes) else json.dumps(body).encode()


Requests = tuple[Request, ...]


@dataclass(frozen=True)
class Attack:
    """Requests of one client."""

    name: str  # how `--only` and the table call it
    item: str  # of `judge.ITEMS`
    requests: Requests  # in their order
    at_once: int = 1  # how many of them are under way at a time
    statuses: frozenset[int] = field(default=frozenset({200, 400}))  # what may be answered
    prompt: int = 0  # tokens of each prompt, if they are many

    @property
    def held_to(self) -> tuple[int, int]:
        """What must be alike in the ordinary requests that it is compared with."""
        return self.at_once, self.prompt


MAINS: Mapping[str, Body] = {
    "lz_": {"lz_penalty": 0.5},
    "dry_": {"dry_multiplier": 0.8},
    "no_repeat_ngram_": {"no_repeat_ngram_size": 3},
    "penalty_last_n": {"repetition_penalty": 1.1},
}
"""The fields without which those that begin in this way are refused."""


def sampled(**sampling: Any) -> Body:
    """A body of /generate with such sampling parameters, and with what they modify."""
    mains = [main for main in MAINS if any(name.startswith(main) for name in sampling)]
    needed = {name: value for main in mains for name, value in MAINS[main].items()}
    fields = {"temperature": 1.0, "max_new_tokens": 24, **needed, **sampling}
    return {"text": "Once upon a time", "sampling_params": fields}


def both(**sampling: Any) -> list[Body]:
    """Sampled and greedy."""
    return [sampled(**sampling), sampled(**{"temperature": 0.0, **sampling})]


def proper(*constraints: str, kind: str = "regex", **sampling: Any) -> list[Body]:
    """Each constraint with proper tokens."""
    return [sampled(**{kind: text, "proper_tokens": True, **sampling}) for text in constraints]


def requests(
    bodies: Sequence[Any], path: str = GENERATE, how: str = ANSWER, after: float = 0.5
) -> Requests:
    """A request of each body."""
    return tuple(Request(body, path, how, after) for body in bodies)


def nested(depth: int, inner: str) -> str:
    """A JSON schema of objects so deep, as text."""
    begin, end = '{"type": "object", "properties": {"a": ', '}, "required": ["a"]}'
    return begin * depth + inner + end * depth


def tag(schema: str, begin: str = "<a>") -> str:
    """A structural tag around a JSON schema."""
    content = f'{{"type": "json_schema", "json_schema": {schema}}}'
    part = f'{{"type": "tag", "begin": "{begin}", "content": {content}, "end": "</a>"}}'
    return f'{{"type": "structural_tag", "format": {part}}}'


COMPOSED = (
    r"[^\n]*입니다",
    r"[^a-z]*가",
    ".*다",
    ".*\u0323",
    "(.*각)|(.*한국어)",
    r"[^\n]{0,200}क्षि",
)
COMPOSED_SCHEMAS = tuple(
    json.dumps({"type": "string", "pattern": pattern})
    for pattern in ("^.*각$", "^.*ệ$", "^[^a]*की$")
)
COUNTED = (
    "([ab]{0,100}){0,300}",
    "(abcdefghijklmnopqrstuvwxyz0123456789){500}",
    "".join(chr(0x4E00 + 7 * i % 20000) for i in range(2000)),
    "(a{0,1000}){0,1000}",
    "((a?){0,300}b?){0,300}",
    "(a|aa|aaa){0,2000}",
    "((((a*)*)*)*)*b",
    ".{0,10000}",
    "(.{0,30}\n){0,200}",
    r"[\s\S]{0,65535}x",
    "(.*a.{0,40}b)",
    "([^\\n]{0,99}(a|é|각)){0,99}",
    "(" * 500 + "a" + ")" * 500,
    "|".join(f"{i:x}" * 9 for i in range(4000)),
    "a{2147483647}",
    "a{0,99999999999999999999}",
)
SCHEMAS = (
    nested(400, "{}"),
    nested(30_000, "{}"),
    '{"anyOf": [' + ", ".join(nested(30, f'{{"const": {i}}}') for i in range(60)) + "]}",
    *map(
        json.dumps,
        (
            {"$ref": "#"},
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 9}}, "$ref": "#/$defs/a"},
            {"type": "array", "items": {"$ref": "#"}, "minItems": 3},
            {"enum": [f"{i}" * 5 for i in range(20_000)]},
            {"type": "string", "minLength": 10**9},
            {"type": "string", "minLength": 20_000, "maxLength": 40_000},
            {"type": "array", "minItems": 10**6, "items": {"type": "integer"}},
            {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(3000)}},
            {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
            {"type": "number", "minimum": 1e-300, "exclusiveMaximum": 1e-299},
            {"type": "string", "pattern": "(a{0,1000}){0,1000}"},
            {"type": "string", "format": "\u0000"},
            {"type": ["object", "nothing"]},
            False,
            [],
            {},
        ),
    ),
)
NOTHING: Sequence[Body] = (
    {"regex": r"[^\s\S]"},
    {"regex": r"a[^\s\S]"},
    {"ebnf": "root ::= root"},
    {"ebnf": 'root ::= "a" x\nx ::= x'},
    {"json_schema": '{"enum": []}'},
    {"json_schema": '{"type": "integer", "minimum": 5, "maximum": 3}'},
    {"json_schema": "false"},
)
"""Constraints that allow no text, the first token or only what follows being in vain."""
GRAMMARS = (
    "root ::= root",
    'root ::= root "a" | root root | ""',
    'root ::= a a a a a a a a\na ::= b b b b b b b b\nb ::= c c c c c c c c\nc ::= "x"? "y"?',
    "root ::= " + "(" * 3000 + '"a"' + ")" * 3000,
    'root ::= "' + "a" * 200_000 + '"',
    "",
    "root ::= nothing",
    "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)), 'r40 ::= "a"']),
)
TAGS = (
    tag('{"$ref": "#"}'),
    tag(nested(400, "{}")),
    tag("{}", "<a>" * 20_000),
    tag("{}", ""),
    '{"structures": [], "triggers": []}',
    json.dumps({"structures": [{"begin": "", "schema": {}, "end": ""}] * 500, "triggers": [""]}),
    '{"type": "structural_tag", "format": {"type": "or", "elements": []}}',
    "{}",
    "[" * 10_000,
)

EXTREMES: Mapping[str, Sequence[Any]] = {
    "temperature": (1e-45, 1e-38, 1e-7, 1e38, 1e308, -0.0, -1, float("nan"), float("inf"), "1", []),
    "top_p": (1e-45, 1e-38, 0, 1, 1 + 1e-9, -1, float("nan")),
    "min_p": (1e-45, 0, 1, 1e38, -1, float("nan")),
    "top_k": (-1, 0, 1, 2**31, 2**63, -(2**63), 1.5, True),
    "repetition_penalty": (1e-45, 1e-38, 1e-3, 2, 1e38, 0, -1, float("nan"), float("inf")),
    "frequency_penalty": (-2, 2, 1e38, float("nan"), float("-inf")),
    "presence_penalty": (-2, 2, -1e38, float("nan")),
    "lz_penalty": (1e-45, 10, 1e38, -1, float("nan")),
    "lz_window_size": (1, 1024, 2**31, -1, 1e300),
    "lz_onset": (64, 65, -1),
    "penalty_last_n": (-1, 0, 1, 2**30, 2**63),
    "dry_multiplier": (1e-45, 100, 1e38, float("nan")),
    "dry_base": (1, 100, 1e38, float("inf")),
    "dry_allowed_length": (0, 1, 2**30, -1),
    "dry_penalty_last_n": (-1, 0, 2**30),
    "dry_sequence_breakers": ([], [""], ["a"] * 2000, ["\u0000"], "x", [None], ["é" * 21]),
    "no_repeat_ngram_size": (0, 1, 2, 2**30, -1),
    "no_repeat_ngram_window": (-1, 0, 1, 2**30),
    "no_repeat_ngram_whitelist": ([], [-1], [10**12], list(range(1024)), list(range(1025))),
    "logit_bias": (
        {"5": 1e38},
        {"5": -1e38},
        {"5": 1e39, "6": -1e308},
        {"5": float("nan")},
        {"-1": 1},
        {"99999999": 1},
        {"x": 1},
        {str(token): -1e38 for token in range(2048)},
    ),
    "min_new_tokens": (0, 5, 24, 25, -1, 2**31),
    "max_new_tokens": (0, 1, 24, -1, 2**31, 2**63, "1"),
    "stop": ("", [""], ["a"] * 40, "x" * 100_000, [1]),
    "stop_token_ids": ([-1], [10**12], list(range(2048)), [True]),
    "stop_regex": ("(a+)+$", "(.*)*x", "(", "a" * 300),
    "n": (0, 3, -1, 2**31),
    "sampling_seed": (-1, 0, 2**31, 2**63),
    "repetition_detection": ({}, {"max_pattern_size": 2**31}, {"min_count": -1}, 5, []),
    "proper_tokens": (True, "yes"),
    "custom_params": ({"a": [1] * 1000}, {"a": {"b": {"c": 1}}}, []),
}
"""Values of fields of a request: at the edges of what is allowed, and beyond them."""
HUGE_TEXTS = (
    lambda: {"text": "a " * 5_000_000},
    lambda: {"text": "x" * 9_000_000},
    lambda: {"text": "e\u0301" * 3_000_000},
)
HUGE_BODIES = (
    lambda: b'{"text": "' + b"a" * 60_000_000,
    lambda: b"[" * 30_000_000,
    lambda: {"input_ids": [5] * 6_000_000},
    lambda: {"text": ["a"] * 30_000},
)
HUGE_FIELDS = (
    lambda: sampled(regex="a" * 3_000_000),
    lambda: sampled(json_schema='"' * 3_000_000),
    lambda: sampled(stop=["a" * 3_000_000] * 2),
    lambda: sampled(logit_bias={str(i): 1 for i in range(10**6)}),
    lambda: {"text": "a", "rid": "x" * 3_000_000},
    lambda: {"text": "a", "extra_key": "x" * 3_000_000},
)

_LETTERS = (
    *("a", "b", " ", "\\n", "é", "e\u0301", "각", "입니다", "क्षि", "日本"),
    *("\U0001f600", "\u0323"),
)
_CLASSES = (".", r"[^\n]", "[a-z]", "[^a-z]", r"\d", r"\w", r"[\s\S]", "[가-힣]", "[\u0300-\u036f]")
_COUNTS = ("", "", "*", "+", "?", "{0,9}", "{3}", "{0,100}", "{20,300}", "{1000}")


def random_regex(rng: random.Random, depth: int = 3) -> str:
    """A regex of some classes, letters of several scripts, alternatives and counts."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(rng.choice((_LETTERS, _CLASSES)))
    parts = [random_regex(rng, depth - 1) + rng.choice(_COUNTS) for _ in range(rng.randint(1, 4))]
    return f"({rng.choice(('', '', '|')).join(parts)})"


def random_schema(rng: random.Random, depth: int = 4) -> Any:
    """A JSON schema of some depth, with bounds of all sizes."""
    kind = rng.choice(("string", "integer", "object", "array", "anyOf", "enum", "pattern"))
    size = rng.choice((0, 1, 3, 30, 1000, 10**6))
    if kind in ("object", "array", "anyOf") and depth:
        inner = [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 4))]
        if kind == "object":
            return {"type": kind, "properties": {f"k{i}": one for i, one in enumerate(inner)}}
        return {"anyOf": inner} if kind == "anyOf" else {"items": inner[0], "maxItems": size}
    if kind == "enum":
        return {"enum": [rng.choice((i, str(i), None, [i])) for i in range(min(size, 300) + 1)]}
    if kind == "pattern":
        return {"type": "string", "pattern": random_regex(rng, 2)}
    return {"type": rng.choice(("string", "integer")), "minLength": size // 2, "maxLength": size}


def random_constraint(rng: random.Random) -> Body:
    """The field of a drawn regex, schema or structural tag, with proper tokens or without."""
    kind = rng.choice(("regex", "regex", "json_schema", "structural_tag"))
    text = random_regex(rng) if kind == "regex" else json.dumps(random_schema(rng))
    text = tag(text) if kind == "structural_tag" else text
    return {kind: text, **({"proper_tokens": True} if rng.random() < 0.7 else {})}


def random_fields(rng: random.Random, most: int = 5) -> Body:
    """Some fields of a request at values of `EXTREMES`, sometimes with a constraint."""
    names = rng.sample(sorted(set(EXTREMES) - {"n", "max_new_tokens"}), rng.randint(1, most))
    fields = {name: rng.choice(EXTREMES[name]) for name in names}
    return fields | (random_constraint(rng) if rng.random() < 0.3 else {})


def _random(rng: random.Random, count: int, draw: Callable[[random.Random], Body]) -> Requests:
    bodies = [
        sampled(**{"temperature": rng.choice((0.0, 1.0)), "max_new_tokens": 24, **draw(rng)})
        for _ in range(count)
    ]
    ways = (ANSWER, ANSWER, STREAM, LEAVE, ABORT)
    return tuple(
        Request(body, how=rng.choice(ways), after=rng.choice((0.0, 0.05, 0.5))) for body in bodies
    )


def _malformed() -> Requests:
    routes = json.loads(Path(__file__).with_name("malformed.json").read_text())
    texts = (b"", b"null", b"[]", b'"x"', b"{", b"[" * 50_000, b"\xff\xfe")
    return tuple(
        Request(body, path) for path, bodies in routes.items() for body in (*bodies, *texts)
    )


def ordinary(server: str, at_once: int, prompt: int) -> Attack:
    """Requests of an honest client, so many at once: what attacks are held to.

    Args:
        server: one of `BOTH`.
        at_once: how many.
        prompt: tokens of each prompt; 0 for some short and some long.
    """
    rng = random.Random(at_once)
    lengths = (prompt, prompt) if prompt else (20, 300, 1500, 60)
    prompts = [
        [rng.randrange(300, VOCABULARY[server]) for _ in range(length)]
        for length in lengths
        for _ in range(max(at_once // 4, 1))
    ]
    bodies = [
        {**body, "input_ids": ids}
        for ids in prompts
        for body in (both(max_new_tokens=60) if prompt else [sampled(max_new_tokens=60)])
    ]
    name = f"ordinary, {at_once} at once" + (f", {prompt} tokens" if prompt else "")
    return Attack(name, ORDINARY, requests(bodies), at_once, prompt=prompt)


def attacks(server: str, seed: int) -> list[Attack]:
    """All attacks on a server, in the order in which they are tried.

    Args:
        server: one of `BOTH`; the ids that are out of range depend on it.
        seed: of the drawn ones.
    """
    rng = random.Random(f"hostile {seed} {server}")
    size = VOCABULARY[server]
    found: list[Attack] = []

    def add(name: str, item: str, bodies: Sequence[Any], at_once: int = 1, **how: Any) -> None:
        ids = [one["input_ids"] for one in bodies if isinstance(one, dict) and "input_ids" in one]
        longest = max((len(one) for one in ids if isinstance(one, list)), default=0)
        prompt = longest if longest > LONG else 0
        found.append(Attack(name, item, requests(bodies, **how), at_once, prompt=prompt))

    prompts = [[5, token] for token in (-1, -(2**31), size + 400, 2**31, 2**63, 10**30)]
    for path, name in ((GENERATE, "input_ids"), (COMPLETIONS, "prompt")):
        bodies = [{"model": "m", name: one, "max_tokens": 4} for one in (*prompts, prompts)]
        add(f"ids, {name}", "1", bodies, path=path)
    odd: Sequence[Any] = ([], [[]], [[5], []], [True], ["1"], 5)
    add("ids, odd", "1", [{"input_ids": one} for one in odd])

    once: Body = {"no_repeat_ngram_size": 1}
    add("n-grams, regex", "2", both(regex="(a ){5}", **once))
    add("n-grams, proper", "2", both(regex="(a ){5}", proper_tokens=True, **once))
    add("n-grams, schema", "2", both(json_schema='{"enum": ["aaaaaaaaaaaa"]}', **once))
    add("n-grams, all ids", "2", [{**one, "input_ids": [*range(1900)]} for one in both(**once)])
    add("n-grams, bias", "2", both(logit_bias={"300": 1e30}, repetition_penalty=2, **once))
    add("n-grams, at once", "2", both(regex="(a ){5}", min_new_tokens=20, **once) * 8, 16)
    most: Body = {"dry_multiplier": 100, "dry_base": 100, "dry_sequence_breakers": []}
    add("DRY, regex", "2", both(regex="(the ){300}", max_new_tokens=200, **most))
    most = {
        "frequency_penalty": 2,
        "presence_penalty": 2,
        "repetition_penalty": 2,
        "lz_penalty": 10,
    }
    add("counts, regex", "2", both(regex="(a ){99}", max_new_tokens=100, **most))
    add("least tokens, regex", "2", both(regex="a", min_new_tokens=5))
    add("least tokens, proper", "2", both(regex="a", min_new_tokens=5, proper_tokens=True))

    add("nothing allowed", "2", [body for one in NOTHING for body in both(**one)])

    for field_name, values in EXTREMES.items():
        bodies = [body for value in values for body in both(**{field_name: value})]
        add(f"value {field_name}", "3", bodies)

    add("four searches", "4", proper(*COMPOSED[:4]), 4)
    many = [proper(*(f"{one}{i}{j}?" for i in range(3) for one in COMPOSED)) for j in range(3)]
    add("many searches", "4", many[0], 16)
    add("searches, left", "4", many[1], 16, how=LEAVE)
    add("searches, aborted", "4", many[2], 16, how=ABORT)
    for i, one in enumerate(COMPOSED):
        add(f"composed {i}", "5", proper(one))
    for i, one in enumerate(COMPOSED_SCHEMAS):
        add(f"composed schema {i}", "5", proper(one, kind="json_schema"))

    for i, one in enumerate(COUNTED):
        add(f"counted {i}", "6", proper(one, max_new_tokens=4))
    add("counted, stock", "6", [sampled(regex=one, max_new_tokens=4) for one in COUNTED])
    add("counted, left", "6", proper(*COUNTED, max_new_tokens=4), 16, how=LEAVE, after=0.3)

    heavy = [
        one["sampling_params"] for one in proper(*(f"([ab]{{0,50}}){{0,30}}{i}" for i in range(64)))
    ]
    lists = [{"text": ["a"] * 64, "sampling_params": one} for one in (heavy, heavy[0])]
    add("rules in a list", "7", [*lists, {"text": "a", "sampling_params": {**heavy[1], "n": 64}}])
    refused = (f"(?=x{i})" + "abc" * 5000 for i in range(70))
    add("refused rules", "7", proper(*refused, *(f"(a{{0,99}}){{0,99}}{i}" for i in range(32))), 4)

    add("breakers", "8", [_breakers(i) for i in range(4)])
    add("breakers, at once", "8", [_breakers(i) for i in range(4, 20)], 16)
    long = [rng.randrange(300, size) for _ in range(1500)]
    fields = sampled(dry_multiplier=0.8, no_repeat_ngram_size=3, frequency_penalty=1)
    add("histories", "9", [{**fields, "input_ids": long[i:] + long[:i]} for i in range(48)], 48)

    add("deep schema", "13", proper(SCHEMAS[0], kind="json_schema"))
    add("schemas", "13", proper(*SCHEMAS, kind="json_schema"))
    add("schemas, stock", "13", [sampled(json_schema=one) for one in SCHEMAS])
    odd = (5, [], {"type": "string"}, None, "", "{", "[" * 5000)
    add("schemas, odd", "13", [sampled(json_schema=one) for one in odd])
    add("grammars", "13", [sampled(ebnf=one) for one in GRAMMARS])
    add("tags", "13", proper(*TAGS, kind="structural_tag"))
    add("tags, stock", "13", [sampled(structural_tag=one) for one in TAGS])

    fewest = [{"model": "m", "input": "hello", "max_output_tokens": n} for n in (1, 2, 3, 16)]
    add("fewest outputs", "14", fewest, path=RESPONSES)

    statuses = frozenset({200, 400, 404, 422})
    found.append(Attack("malformed", "15", _malformed(), statuses=statuses))
    message = {"messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a"}
    stream = {"model": "m", "max_tokens": 300, "stream": True, **message}
    for path in (CHAT, COMPLETIONS, RESPONSES, "/v1/messages", "/api/chat", "/api/generate"):
        add(f"left streams, {path}", "15", [stream] * 4, 4, path=path, how=LEAVE, after=0.2)

    add("huge texts", "new", HUGE_TEXTS)
    add("huge bodies", "new", HUGE_BODIES)
    add("huge fields", "new", HUGE_FIELDS)
    add("many outputs", "new", [sampled(n=n, max_new_tokens=4) for n in (500, 10**5)], 4)
    logprobs = {"input_ids": long, "return_logprob": True, "logprob_start_len": 0}
    add("all logprobs", "new", [{**logprobs, "top_logprobs_num": n} for n in (1000, size)])
    wrong = {"messages": [{"role": "user", "content": [{"type": "zzz"}] * 20_000}]}
    types = {"name": "f", "parameters": {"type": [None, *map(str, range(16_000))]}}
    tools = {**message, "tools": [{"type": "function", "function": types}]}
    add("wrong parts of messages", "new", [wrong, tools], path=CHAT)
    add("wrong ids", "new", [{"model": "m", "prompt": [[None] * 100_000] * 4}], path=COMPLETIONS)
    calls = {"text": "[f(a=" * 20_000, "tools": [], "tool_call_parser": "pythonic"}
    add("calls of tools", "new", [calls], path="/parse_function_call")
    stops = ("(a+)+b", "(a|a)*b", "(.*)*b", "(?:[a-z]{1, 500}){1, 50}X|[0-9]+Q")
    add(
        "stop regex",
        "new",
        [sampled(regex="a{80}", max_new_tokens=60, stop_regex=x) for x in stops],
    )
    add("same name", "new", [{**sampled(), "rid": "same"}] * 8, 16)
    add(
        "short names, left",
        "new",
        [{**sampled(), "rid": x} for x in "0123456789abcdef"],
        16,
        how=LEAVE,
    )

    for i in range(6):
        found.append(Attack(f"random constraint {i}", "random", _random(rng, 1, random_constraint)))
    for i, at_once in enumerate((1, 16, 16)):
        drawn = _random(rng, 24, random_constraint)
        found.append(Attack(f"random constraints {i}", "random", drawn, at_once))
        drawn = _random(rng, 60, random_fields)
        found.append(Attack(f"random values {i}", "random", drawn, at_once))
    return [one for one in found if server == DEMO or one.name.startswith(ON_LARGE)]


def _breakers(number: int) -> Body:
    texts = [f"{i:04}-{number:04}" + "x" * 31 for i in range(1024)]
    return sampled(dry_multiplier=0.8, dry_sequence_breakers=texts)
