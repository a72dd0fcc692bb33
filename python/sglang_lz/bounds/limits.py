"""Ranges of upstream's own request fields that upstream does not check, or checks too late.

A value outside its range crashes the scheduler, and with it the server. Examples are the embedding
of a token that does not exist, or logprobs for more tokens than the vocabulary has.

`check_internal` and `check_object` check HTTP bodies. The others check requests, whether they came
over HTTP, gRPC or the offline Engine: `check_batch` before anything is created for prompts and
copies, the rest before a scheduler gets them. All raise FieldError, which names the field, its
value and its range.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from lz_penalty.fields.kinds import Kind, is_integer, number
from lz_penalty.fields.table import FieldError, bad_value, shown
from lz_penalty.history import LARGEST_CHANGE
from sglang_lz.bounds import stop_regex

MOST_COPIES = 1024
"""The largest `n`: upstream creates the state of all copies before it checks anything else."""
MOST_OUTPUTS = 4096
"""The most outputs of a request: the number of prompts times `n`."""

INTERNAL = (
    *("http_worker_ipc", "lora_id", "multi_item_delimiter_indices", "token_indices_to_pool"),
    *("positional_embed_overrides", "embed_overrides", "need_wait_for_mm_inputs"),
    *("num_items_assigned", "encoder_urls"),
)
"""Fields of upstream's request models that upstream sets itself, from checked ones.

Upstream's models also accept them in an HTTP body, and pass them unchecked to the scheduler.
"""

MOST_CHARACTERS = 1 << 18
"""The longest constraint, in characters."""
MOST_LEVELS = 128
"""The deepest nesting of objects and lists in a schema or structural tag."""
TOO_DEEP = f"it is nested deeper than {MOST_LEVELS} levels"
MOST_COUNTED = 200
"""The most properties of an object with `minProperties` or `maxProperties`."""
MOST_OPTIONAL = 512
"""The most optional properties of an object: XGrammar creates a rule for each pair of them."""
MOST_REPEATED = 4000
"""How many characters longer the patterns of a schema may be with their repetitions written out.
This is the root of the sum of their squares, because XGrammar's time is the square."""
CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag")

MOST_BODY = 16 << 20
"""The largest body with prompts, in bytes."""
MOST_MEDIA = 128 << 20
"""The same for a model that accepts images, videos or audio."""
LEAST_BODY = 1 << 20
"""The smallest limit for a body with a single prompt, in bytes: it may hold schemas and tools."""
MOST_NAME = 1024
NAMES = ("rid", "request_id", "extra_key", "cache_salt")
"""Fields that are passed back and forth with each token: at most `MOST_NAME` characters."""
MOST_ENTRIES = 1 << 16
"""The most keys of a field, such as `logit_bias`: each is processed several times."""
MOST_STOPS = 32  # as upstream, which does not name the field
LONGEST_STOPS = 4096
"""The most characters of all `stop` strings: each step decodes as many tokens again."""
PROMPTS = ("text", "input_ids", "prompt", "input", "items", "documents")
"""Fields that may be a list of prompts."""
MOST_QUERIES = 1 << 26
"""The most characters or tokens of /v1/score, whose query is repeated for each item."""
MOST_TOOL_VALUES = 1 << 14
"""The most values in `tools`: upstream checks each schema on the event loop."""
MOST_CUSTOM = 1 << 18
"""The most values and characters in `custom_params`: each output has them again."""
MOST_CALLS = 1 << 13
"""The longest text of /parse_function_call, in characters: some parsers take its square."""
MOST_TYPES = 7
"""The most names in a `type` of a schema: as many as there are, and checking takes their square."""

PER_PROMPT = (
    *("bootstrap_host", "bootstrap_pair_key", "bootstrap_port", "bootstrap_room", "cache_salt"),
    *("custom_logit_processor", "decode_tp_size", "extra_key", "logprob_start_len", "lora_path"),
    *("return_hidden_states", "return_logprob", "return_sampling_mask", "rid"),
    *("sampling_params", "top_logprobs_num"),
)
"""Fields of /generate that may be lists with one item for each prompt."""
LISTS_PER_PROMPT = ("multi_item_delimiter_indices", "token_ids_logprob", "token_indices_to_pool")
"""Fields that are a single list, or one list for each prompt."""
MOST_CHOSEN = 4096
"""The most ids in `token_ids_logprob`: each costs time at every position."""
MOST_TOP = 1 << 14
"""The most top logprobs of a position; this many take about 16 ms."""
MOST_TOPS = 1 << 20
"""The most top logprobs of a prompt; this many take one second."""

FLOATS: Mapping[str, Kind] = MappingProxyType(
    {
        "temperature": number(0, 1e30),
        "top_p": number(1e-30, 1),
        "min_p": number(0, 1),
        "frequency_penalty": number(-2, 2),
        "presence_penalty": number(-2, 2),
        "repetition_penalty": number(0.01, 2),
    }
)
"""Upstream's numeric fields. Upstream accepts values that become 0, infinite or NaN in float32,
which leaves nothing to sample from."""
LOGIT_BIAS = number(-LARGEST_CHANGE, LARGEST_CHANGE)
"""The range of each value in a `logit_bias`."""

_INT32, _INT64 = 2**31 - 1, 2**63 - 1


def _refused(field: str, rule: str, got: object) -> FieldError:
    return FieldError(field, f"{field} must {rule}, got {got}.")


def as_list(value: object) -> list[Any]:
    """A list as it is, and anything else as a list of itself."""
    return value if isinstance(value, list) else [value]


def check_internal(values: Mapping[str, Any]) -> None:
    """Reject a body that sets one of the fields in `INTERNAL`."""
    for name in INTERNAL:
        if values.get(name) is not None:
            raise bad_value(name, values[name], "left out: the server sets it itself")


def check_object(values: Mapping[str, Any]) -> None:
    """Reject values that are too large, reserved ids, and chat templates from untrusted clients.

    A request whose id begins like those of upstream's health checks is never answered while the
    server is busy. A chat template is a program that may run indefinitely. Upstream rejects it in
    chat completions, but runs it in /v1/responses and /v1/decisions.

    Args:
        values: an object in an HTTP body, on any route.
    """
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
    from sglang.srt.runtime_context import get_context

    for name in NAMES:
        for one in as_list(values.get(name)):
            if isinstance(one, str) and len(one) > MOST_NAME:
                got = f"{len(one)}: {shown(one)}"
                raise _refused(name, f"be at most {MOST_NAME} characters", got)
            if isinstance(one, str) and one.startswith(HEALTH_CHECK_RID_PREFIX):
                rule = f"not begin with {HEALTH_CHECK_RID_PREFIX}, which the server's own checks do"
                raise _refused(name, rule, shown(values[name]))
    _check_sizes(values)
    stops = [*as_list(values.get("stop")), *as_list(values.get("stop_sequences"))]
    stops = [one for one in stops if isinstance(one, str)]
    characters = sum(map(len, stops))
    if len(stops) > MOST_STOPS or characters > LONGEST_STOPS:
        rule = f"be at most {MOST_STOPS} strings of at most {LONGEST_STOPS} characters in all"
        raise _refused("stop", rule, f"{len(stops)} of {characters}")
    for name, value in values.items():
        if isinstance(value, dict) and len(value) > MOST_ENTRIES:
            raise _refused(name, f"have at most {MOST_ENTRIES} keys", len(value))
    kwargs = values.get("chat_template_kwargs")
    if not isinstance(kwargs, dict):
        return
    for name in ("conversation", "tokenize", "tools"):
        if name in kwargs:
            rule = f"not have {name}, which the server gives to each template"
            raise _refused("chat_template_kwargs", rule, shown(kwargs[name]))
    template = kwargs.get("chat_template")
    if template is not None and not get_context().config_leaf("trust_request_chat_template"):
        without = "for the server was started without --trust-request-chat-template"
        rule = f"not have chat_template, {without}"
        raise _refused("chat_template_kwargs", rule, shown(template))


def _check_sizes(values: Mapping[str, Any]) -> None:
    """Reject what would hold the event loop or memory before its endpoint refuses it."""
    for name in PROMPTS:
        given = values.get(name)
        if not isinstance(given, list) or len(given) <= MOST_OUTPUTS:
            continue
        if not isinstance(given[0], int | dict):  # token ids, or a conversation
            raise _refused(name, f"be at most {MOST_OUTPUTS} prompts", len(given))
    several = values.get("query"), values.get("items") or values.get("documents")
    size = math.prod(len(one) if isinstance(one, str | list) else 0 for one in several)
    if size > MOST_QUERIES:
        raise _refused("query", f"be at most {MOST_QUERIES} long with all its repeats", size)
    holders = [values, *(one for one in as_list(values.get("messages")) if isinstance(one, dict))]
    tools = [one["tools"] for one in holders if one.get("tools")]
    for count, (value, _) in enumerate(_values(tools)):
        is_long = isinstance(value, dict) and len(as_list(value.get("type"))) > MOST_TYPES
        if is_long or count > MOST_TOOL_VALUES:
            rule = f"have at most {MOST_TOOL_VALUES} values, and {MOST_TYPES} names in a type"
            raise _refused("tools", rule, "more")
    text = values.get("text")
    if "tool_call_parser" in values and isinstance(text, str) and len(text) > MOST_CALLS:
        raise _refused("text", f"be at most {MOST_CALLS} characters here", len(text))
    custom = 0
    for value, depth in _values(values.get("custom_params")):
        custom += 1 + sum(map(len, value if isinstance(value, str | dict) else ()))
        if depth > MOST_LEVELS or custom > MOST_CUSTOM:
            rule = f"have at most {MOST_LEVELS} levels, and {MOST_CUSTOM} values and characters"
            raise _refused("custom_params", rule, "more")


def check_batch(obj: Any) -> None:
    """Check a request for several prompts or outputs (upstream's hook, before it creates them).

    Args:
        obj: upstream's request, whose number of prompts is known.
    """
    listed = [one for one in as_list(obj.sampling_params) if isinstance(one, dict)]
    for values in listed:
        n = values.get("n", 1)
        if not is_integer(n) or not 1 <= n <= MOST_COPIES:
            raise bad_value("n", n, f"an integer in [1, {MOST_COPIES}]")
        if n * obj.batch_size > MOST_OUTPUTS:
            rule = f"be at most {MOST_OUTPUTS} divided by the number of prompts"
            raise _refused("n", rule, f"{n} for {obj.batch_size} prompts")
    if obj.batch_size > MOST_OUTPUTS:
        raise FieldError(
            "text",
            f"text or input_ids must be at most {MOST_OUTPUTS} prompts, got {obj.batch_size}.",
        )
    # This bounds the total of all patterns; each is checked again when its request is admitted.
    patterns = (as_list(one.get(stop_regex.FIELD)) for one in listed)
    stop_regex.check(list({one for some in patterns for one in some if isinstance(one, str)}))
    for name in (*PER_PROMPT, *LISTS_PER_PROMPT):
        value = getattr(obj, name, None)
        is_flat = name in LISTS_PER_PROMPT and not (value and isinstance(value[0], list))
        if not isinstance(value, list) or is_flat:
            continue
        if obj.is_single:
            raise bad_value(name, value, "no list, for there is one prompt")
        if len(value) != obj.batch_size:
            raise bad_value(name, value, f"a list of {obj.batch_size} items, one for each prompt")


def check_request(obj: Any, input_ids: Sequence[int] | None, vocab_size: int) -> None:
    """Check one request, except for its sampling parameters (upstream's hook).

    Args:
        obj: upstream's request, for one prompt.
        input_ids: the prompt's tokens as upstream will send them to the scheduler; None if there
            are none. With images, videos or audio they contain upstream's placeholders for that
            input; in that case the ids sent by the client are checked instead.
        vocab_size: the width of the model's embedding, V.
    """
    prompt = obj.input_ids if obj.contains_mm_input() else input_ids
    if prompt is not None:
        check_token_ids("input_ids", prompt, vocab_size)
    session = getattr(obj, "session_params", None)
    if session is not None:
        _check_session(session)
    # With a session, the prompt may consist of its history alone.
    if input_ids is not None and not len(input_ids) and not (session and session.get("id")):
        raise FieldError(
            "input_ids", "text or input_ids must hold at least one token, got an empty prompt."
        )
    name = "token_ids_logprob"
    wanted = getattr(obj, name, None)
    if isinstance(wanted, list):
        check_token_ids(name, wanted, vocab_size)
        if len(wanted) > MOST_CHOSEN:
            raise _refused(name, f"hold at most {MOST_CHOSEN} token ids", len(wanted))
    _check_top(obj, input_ids, min(vocab_size, MOST_TOP))
    for name, least, most in (
        ("logprob_start_len", -1, _INT32),
        ("routed_experts_start_len", 0, _INT32),
        ("bootstrap_room", 0, _INT64),
    ):
        value = getattr(obj, name, None)
        if value is not None and not (is_integer(value) and least <= value <= most):
            raise bad_value(name, value, f"an integer in [{least}, {most}]")
    _check_labels(getattr(obj, "custom_labels", None))


def check_token_ids(field: str, ids: Collection[int], vocab_size: int) -> None:
    """Check token ids from a client, in one pass of C code.

    Args:
        field: the field's name in the request.
        ids: a list of arbitrary values, which must be integers in [0, V).
        vocab_size: V.
    """
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size):
        return
    for one in ids:
        if not is_integer(one) or not 0 <= one < vocab_size:
            rule = f"be token ids in [0, {vocab_size - 1}]"
            raise _refused(field, rule, f"{shown(one)} among them")


def check_tokens(field: str, tokens: Any, vocab_size: int) -> None:
    """Like `check_token_ids`, for one list of ids or for several lists (upstream's hook)."""
    several = isinstance(tokens, list) and any(isinstance(one, list) for one in tokens)
    for ids in tokens if several else [tokens]:
        check_token_ids(field, as_list(ids), vocab_size)


def check_sampling_integers(sampling_params: Any) -> None:
    """Check the integers of SamplingParams that upstream stores in 32 bits (upstream's hook)."""
    for name in ("max_new_tokens", "min_new_tokens", "top_k", "beam_width", "stream_interval"):
        value = getattr(sampling_params, name)
        if value is not None and not (is_integer(value) and -_INT32 <= value <= _INT32):
            raise bad_value(name, value, f"an integer of at most {_INT32}")
    interval = sampling_params.stream_interval
    if interval is not None and interval < 1:
        raise bad_value("stream_interval", interval, "at least 1")
    stops = sampling_params.stop_token_ids or ()
    if len(stops) > MOST_CHOSEN:
        raise _refused("stop_token_ids", f"hold at most {MOST_CHOSEN} token ids", len(stops))
    for value in stops:
        if not -_INT32 <= value <= _INT32:
            raise _refused("stop_token_ids", "be token ids", f"{shown(value)} among them")


def check_sampling_floats(sampling_params: Any) -> None:
    """Check the floats of SamplingParams that change logits, before upstream verifies them."""
    for name, kind in FLOATS.items():
        value = getattr(sampling_params, name)
        if not kind.takes(value, None):
            raise bad_value(name, value, kind.allowed)
    bias = sampling_params.logit_bias
    for token, value in bias.items() if isinstance(bias, dict) else ():
        if not LOGIT_BIAS.takes(value, None):
            rule = f"have values that are {LOGIT_BIAS.allowed}"
            raise _refused("logit_bias", rule, f"{shown(value)} for {shown(token)}")


def check_constraints(sampling_params: Any) -> None:
    """Check the size of a request's constraint before upstream has XGrammar compile it.

    Compiling it may take minutes, or gigabytes of memory. Two grammar backends would let
    `stop_token_ids` end an output that is not complete.
    """
    from sglang.srt.runtime_context import get_context

    given = {name: getattr(sampling_params, name) for name in CONSTRAINTS}
    stops = sampling_params.stop_token_ids
    if stops and not sampling_params.ignore_eos and any(given.values()):
        backend = get_context().config_leaf("grammar_backend")
        if backend in ("llguidance", "outlines"):
            raise FieldError(
                "stop_token_ids",
                "stop_token_ids must be left out beside a constraint with --grammar-backend "
                f"{backend}, got {shown(sorted(stops))}: the output could end incomplete.",
            )
    for name, text in given.items():
        if text is None:
            continue
        if not isinstance(text, str):
            raise bad_value(name, text, "a string")
        problem = None
        if len(text) > MOST_CHARACTERS:
            problem = f"it has {len(text)} characters, more than {MOST_CHARACTERS}"
        elif name in ("json_schema", "structural_tag"):
            try:
                problem = too_large(json.loads(text))
            except RecursionError:
                problem = TOO_DEEP
            except ValueError:
                continue  # upstream reports what is wrong with it
        if problem:
            raise FieldError(name, f"{name} is too large to be compiled: {problem}.")


def too_large(document: Any) -> str | None:
    """Why XGrammar would need minutes or gigabytes to compile a schema; None if it would not.

    The cost is the cube of the depth. It is also the square of the number of optional properties of
    an object, or of all its properties if their number is bounded, and of the length of a pattern
    whose repetitions are written out.

    Args:
        document: parsed JSON.
    """
    repeated = 0.0
    for value, depth in _values(document):
        if depth > MOST_LEVELS:
            return TOO_DEEP
        for pattern in _patterns(value):
            repeated = math.hypot(repeated, _repeated(pattern))
        if repeated > MOST_REPEATED:
            return (
                f"its patterns are {repeated:.0f} characters longer with their repetitions written "
                f"out, more than {MOST_REPEATED}"
            )
        if isinstance(value, dict) and len(as_list(value.get("type"))) > MOST_TYPES:
            return f"a type has more than {MOST_TYPES} names"
        properties = value.get("properties") if isinstance(value, dict) else None
        if not isinstance(properties, dict):
            continue
        if len(properties) > MOST_COUNTED and not {"minProperties", "maxProperties"}.isdisjoint(
            value
        ):
            return f"it counts {len(properties)} properties, more than {MOST_COUNTED}"
        required = value.get("required")
        optional = len(properties) - (len(required) if isinstance(required, list) else 0)
        if optional > MOST_OPTIONAL:
            return f"an object has {optional} optional properties, more than {MOST_OPTIONAL}"
    return None


def _patterns(value: Any) -> Iterator[str]:
    """The patterns of one part of a schema. In a structural tag, a regex costs less."""
    if not isinstance(value, dict) or value.get("type") == "regex":
        return
    if isinstance(value.get("pattern"), str):
        yield value["pattern"]
    if isinstance(value.get("patternProperties"), dict):
        yield from value["patternProperties"]


_PART = re.compile(
    r"\\. | \[ (?: \\. | [^]\\] )* \]? | \{ ([0-9]{1,18}) (?: , ([0-9]{0,18}) )? \} | .",
    re.DOTALL | re.VERBOSE,
)
_LONGEST = 10**9


def _repeated(pattern: str) -> int:
    """How many characters longer a pattern is with its bounded repetitions written out."""
    groups = [0]
    last = 0
    for part in _PART.finditer(pattern):
        if part[1]:
            times = int(part[2] or part[1])
            groups[-1] += max(0, times - 1) * last
            last *= times
        elif part[0] == "(":
            groups.append(0)
        elif part[0] == ")" and len(groups) > 1:
            last = groups.pop() + 2
            groups[-1] += last
        else:
            last = len(part[0])
            groups[-1] += last
        last, groups[-1] = min(last, _LONGEST), min(groups[-1], _LONGEST)
    return max(0, sum(groups) - len(pattern))


def _values(document: Any) -> Iterator[tuple[Any, int]]:
    """All values of a JSON document, with the depth of each."""
    stack = [iter([document])]  # of iterators, since a list may be long
    while stack:
        for value in stack[-1]:
            yield value, len(stack) - 1
            if isinstance(value, dict | list):
                stack.append(iter(value.values() if isinstance(value, dict) else value))
                break
        else:
            stack.pop()


def _check_top(obj: Any, input_ids: Sequence[int] | None, most: int) -> None:
    name = "top_logprobs_num"
    top = getattr(obj, name, None)
    if top is not None and not (is_integer(top) and 0 <= top <= most):
        rule = "(logprobs or top_logprobs of OpenAI's API) must be an integer in"
        raise FieldError(name, f"{name} {rule} [0, {most}], got {shown(top)}.")
    start = getattr(obj, "logprob_start_len", None)
    if not top or input_ids is None or not isinstance(start, int) or start < 0:
        return
    if (getattr(obj, "session_params", None) or {}).get("id"):
        rule = "be 0 where logprob_start_len asks for those of a session's prompt"
        raise _refused(name, rule, top)
    positions = max(0, len(input_ids) - start)
    if top * positions > MOST_TOPS:
        tokens = "the tokens of the prompt from logprob_start_len on"
        rule = f"be at most {MOST_TOPS} divided by {tokens}"
        raise _refused(name, rule, f"{top} for {positions} tokens")


def _check_labels(labels: Mapping[str, str] | None) -> None:
    """Check the labels for the server's metrics: an undeclared label name crashes the server."""
    from sglang.srt.runtime_context import get_context

    config = get_context().config_leaf
    if not labels or not config("enable_metrics"):
        return
    allowed = config("tokenizer_metrics_allowed_custom_labels") or ()
    for name in labels:
        if name not in allowed:
            rule = "have names of --tokenizer-metrics-allowed-custom-labels only"
            raise _refused("custom_labels", rule, shown(name))


def _check_session(values: object) -> None:
    from sglang.srt.managers.io_struct import SessionParams

    if not isinstance(values, dict):
        raise bad_value("session_params", values, "an object")
    types = {field.name: field.type for field in msgspec.structs.fields(SessionParams)}
    for name, value in values.items():
        try:
            msgspec.convert(value, types[name])
        except (KeyError, msgspec.ValidationError):
            raise FieldError(
                "session_params",
                f"session_params.{name} must be one of {', '.join(types)}, of its type, got "
                f"{shown(value)}.",
            ) from None
