"""Ranges of upstream's own request fields."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty.fields.table import FieldError
from sglang_lz.bounds import limits
from sglang_lz.bounds.limits import (
    INTERNAL,
    MOST_COPIES,
    MOST_OUTPUTS,
    check_batch,
    check_request,
    check_token_ids,
    check_tokens,
)
from sglang_lz.http import gate
from sglang_lz.http.admission import RequestFields

V = 2048


def request(**fields: Any) -> SimpleNamespace:
    """One request, as upstream checks it."""
    media = fields.pop("media", False)
    given_fields = {"input_ids": [1, 2], **fields}
    return SimpleNamespace(**given_fields, contains_mm_input=lambda: media)


def refusal(obj: SimpleNamespace, input_ids: Any) -> str:
    with pytest.raises(FieldError) as raised:
        check_request(obj, input_ids, V)
    return str(raised.value)


class TestTokenIds:
    @given(st.lists(st.integers(-3, V + 2) | st.booleans() | st.floats() | st.text(max_size=1)))
    def test_exactly_the_ids_of_the_vocabulary_pass(self, ids: list[Any]) -> None:
        right = all(type(one) is int and 0 <= one < V for one in ids)
        try:
            check_token_ids("input_ids", ids, V)
        except FieldError:
            assert not right
        else:
            assert right

    def test_lists_of_lists(self) -> None:
        check_tokens("tokens", [], V)
        check_tokens("tokens", [[], [5]], V)
        for wrong in ([[5], [-1]], [[5], 2**40], [5, [6], -1], "a", 2**70):
            with pytest.raises(FieldError, match="tokens must be token ids"):
                check_tokens("tokens", wrong, V)

    def test_a_million_ids_take_no_loop(self) -> None:
        """They take about 30 ms; a Python loop over the ids would take a second."""
        ids = list(range(V)) * 512
        begin = time.process_time()
        check_token_ids("input_ids", ids, V)
        assert time.process_time() - begin < 0.6

    def test_image_placeholder_ids_are_not_checked(self) -> None:
        of_the_image = [5, V + 10**6, 6]
        check_request(request(media=True, input_ids=[5, 7, 6]), of_the_image, V)
        check_request(request(media=True, input_ids=None), of_the_image, V)
        assert "got -1" in refusal(request(media=True, input_ids=[5, -1, 6]), of_the_image)


# By field: values that pass, values that do not, and what is said of those.
FIELDS: dict[str, tuple[list[Any], list[Any], str]] = {
    "top_logprobs_num": (
        [None, 0, 5, V], [-1, V + 1, 2**62, True, "3", 1.0], f"an integer in [0, {V}]"
    ),
    "logprob_start_len": ([None, -1, 0, 5], [-2, 2**40, "3", 1.5, True], "must be an integer"),
    "token_ids_logprob": ([list(range(V))], [[5, V]], "must be token ids"),
    "bootstrap_room": ([0], [-1, 2**63], "must be an integer in [0, "),
    "routed_experts_start_len": ([0], [-1], "must be an integer in [0, "),
    # The scheduler uses them as keys, which a list cannot be.
    "session_params": (
        [{"id": "s", "rid": None, "offset": -3}],
        [
            *([1], "s", {"id": 5}, {"id": ["s"]}, {"id": "s", "rid": [1]}),
            *({"id": "s", "offset": "1"}, {"id": "s", "replace": 5}, {"id": "s", "ofset": 1}),
        ],
        "session_params",
    ),
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_fields_of_a_request_have_types_and_ranges(field: str) -> None:
    right, wrong, said = FIELDS[field]
    for value in right:
        check_request(request(**{field: value}), [1], V)
    for value in wrong:
        message = refusal(request(**{field: value}), [1])
        assert field in message
        assert said in message


def test_logprobs_have_a_bound_of_their_own() -> None:
    with pytest.raises(FieldError, match=f"in \\[0, {limits.MOST_TOP}\\]"):
        check_request(request(top_logprobs_num=limits.MOST_TOP + 1), [1], 100_000)
    assert "at most 4096" in refusal(request(token_ids_logprob=[5] * 4097), [1])


@pytest.mark.parametrize(
    ("top", "start", "is_right"),
    [(128, 0, True), (129, 0, False), (129, 100, True), (V, -1, True), (0, 0, True)],
)
def test_top_logprobs_of_a_prompt_are_bounded(top: int, start: int, is_right: bool) -> None:
    obj = request(top_logprobs_num=top, logprob_start_len=start)
    ids = [1] * (limits.MOST_TOPS // 128)
    if is_right:
        check_request(obj, ids, V)
    else:
        assert f"at most {limits.MOST_TOPS} divided by the tokens of the prompt" in refusal(
            obj, ids
        )


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("stop", "x" * 4096, "x" * 4097),
        ("stop", ["x"] * 32, ["x"] * 33),
        ("stop", ["x" * 2048] * 2, ["x" * 2048, "x" * 2049]),
        ("rid", ["x" * 1024, "y"], ["y", "x" * 1025]),
        ("extra_key", "x" * 1024, "x" * 1025),
        ("cache_salt", None, "x" * 1025),
        ("logit_bias", dict.fromkeys(map(str, range(1 << 16)), 1), dict.fromkeys(range(65537), 1)),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else type(value).__name__,
)
def test_oversized_values_are_refused(
    server_config: dict[str, Any], field: str, right: object, wrong: object
) -> None:
    limits.check_object({field: right})
    with pytest.raises(FieldError, match=f"^{field} must ") as raised:
        limits.check_object({field: wrong})
    assert len(str(raised.value)) < 300


def test_patterns_too_slow_for_xgrammar_are_refused() -> None:
    """It takes twenty seconds and more for each of the first three."""
    many = {f"p{i}": {"type": "string", "pattern": f"(a?){{{300 + i}}}"} for i in range(60)}
    for schema in (
        {"type": "string", "pattern": "(a?){30000}"},
        {"type": "object", "patternProperties": {"(a|b|c){0,9000}": {}}},
        {"anyOf": [{"items": {"pattern": "((?:){60000}){60000}"}}]},
        {"pattern": "((a{999999999999}){999999999999}){2}"},
        {"type": "object", "properties": many},
    ):
        assert "its patterns are" in str(limits.too_large(schema)), schema
    for schema in (
        {"type": "string", "pattern": r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
        {"type": "string", "pattern": "^.{1,2000}$"},
        {"type": "object", "properties": {"pattern": {"enum": ["a{9000}"]}}},
        {"format": {"type": "regex", "pattern": "[a-z]{2,9000}"}},
        {"pattern": r"\{9999999}\([({9999999}]"},
        *({"pattern": part * 30_000} for part in ("(", "a)", "{", "[")),
    ):
        assert limits.too_large(schema) is None, schema


def test_unknown_metric_labels_are_refused(server_config: dict[str, Any]) -> None:
    server_config["tokenizer_metrics_allowed_custom_labels"] = ["team"]
    asked = request(custom_labels={"team": "a", "b": "c"})
    check_request(asked, [1], V)  # without metrics nobody reads them
    server_config["enable_metrics"] = True
    assert "custom_labels" in refusal(asked, [1])
    check_request(request(custom_labels={"team": "a"}), [1], V)
    server_config["tokenizer_metrics_allowed_custom_labels"] = None
    assert "got 'team'" in refusal(request(custom_labels={"team": "a"}), [1])


def batch(size: int = 1, **fields: Any) -> SimpleNamespace:
    """A request for several prompts, as upstream looks at it; of size 1 it has one."""
    return SimpleNamespace(
        **{"batch_size": size, "is_single": size == 1, "sampling_params": None, **fields}
    )


def test_prompts_times_copies_are_bounded() -> None:
    for n in (0, MOST_COPIES + 1, None, "2", 1.5, True):
        with pytest.raises(FieldError, match=r"n must be an integer in \[1, 1024\]"):
            check_batch(batch(2, sampling_params=[{}, {"n": n}]))
    check_batch(batch(MOST_OUTPUTS))
    check_batch(batch(4, sampling_params={"n": MOST_COPIES}))
    with pytest.raises(FieldError, match=r"^n must be at most 4096 divided"):
        check_batch(batch(5, sampling_params={"n": MOST_COPIES}))
    with pytest.raises(FieldError, match="must be at most 4096 prompts, got 4097"):
        check_batch(batch(MOST_OUTPUTS + 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [("rid", ["a"]), ("lora_path", ["a"]), ("return_logprob", [True]), ("top_logprobs_num", [1])],
)
def test_lists_have_one_item_for_each_prompt(name: str, value: list[Any]) -> None:
    with pytest.raises(FieldError, match=f"^{name} must be no list"):
        check_batch(batch(**{name: value}))
    with pytest.raises(FieldError, match=f"^{name} must be a list of 3 items"):
        check_batch(batch(3, **{name: value}))
    check_batch(batch(2, **{name: value * 2}))


def test_lists_of_lists_have_one_for_each_prompt() -> None:
    check_batch(batch(token_ids_logprob=[1, 2, 3]))
    check_batch(batch(3, token_ids_logprob=[1, 2]))
    check_batch(batch(2, token_ids_logprob=[[1, 2, 3], [4]]))
    for made in (batch(token_ids_logprob=[[1]]), batch(3, token_ids_logprob=[[1], [2]])):
        with pytest.raises(FieldError, match=r"^token_ids_logprob must be "):
            check_batch(made)


def test_the_stop_patterns_of_a_list_count_together() -> None:
    """Otherwise 4,096 prompts could have 4,096 times as many."""
    params = [{"stop_regex": rf"\w{{8}}{i}"} for i in range(3)]
    with pytest.raises(FieldError, match=r"^stop_regex must be at most 32 patterns"):
        check_batch(batch(3, sampling_params=params))
    check_batch(batch(3, sampling_params=params[:1] * 3))


@pytest.mark.parametrize("model", [RequestFields, None])
def test_chat_templates_of_clients(model: type | None, server_config: dict[str, Any]) -> None:
    """In /v1/responses, and in /v1/decisions, which takes no field of ours."""
    body = {"input": "a", "chat_template_kwargs": {"chat_template": "{{ 'a' * 10**10 }}"}}
    with pytest.raises(FieldError, match=r"^chat_template_kwargs must not have chat_template"):
        gate.check_json(body, model)
    server_config["trust_request_chat_template"] = True
    gate.check_json(body, model)
    for name in ("conversation", "tokenize", "tools"):
        with pytest.raises(FieldError, match=f"^chat_template_kwargs must not have {name}"):
            gate.check_json({"input": "a", "chat_template_kwargs": {name: None}}, model)


@pytest.mark.parametrize("field", INTERNAL)
def test_fields_that_only_upstream_sets_are_refused(field: str) -> None:
    limits.check_internal({"text": "a", field: None})
    with pytest.raises(FieldError, match=f"{field} must be left out"):
        limits.check_internal({"text": "a", field: [0]})


def nested(levels: int) -> str:
    """A schema with objects in each other; each has two levels of JSON."""
    return '{"properties": {"a": ' * levels + "{}" + "}}" * levels


@pytest.mark.parametrize("name", limits.CONSTRAINTS)
def test_a_constraint_must_be_a_string(name: str) -> None:
    """The offline Engine has no request model that checks it."""
    constraints = dict.fromkeys((*limits.CONSTRAINTS, "stop_token_ids", "ignore_eos"))
    constraints[name] = {"type": "object"}
    with pytest.raises(FieldError, match=rf"^{name} must be a string, got \{{"):
        limits.check_constraints(SimpleNamespace(**constraints))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("regex", "a" * (2**18 + 1), "262145 characters"),
        ("ebnf", "a" * (2**18 + 1), "262145 characters"),
        ("json_schema", nested(100), "nested deeper than 128 levels"),
        ("json_schema", "[" * 100_000 + "]" * 100_000, "nested deeper than 128 levels"),
        ("structural_tag", nested(65), "nested deeper than 128 levels"),
        (
            "json_schema",
            json.dumps({"maxProperties": 2, "properties": {str(i): {} for i in range(201)}}),
            "counts 201 properties",
        ),
        (
            "json_schema",
            json.dumps({"required": ["0"], "properties": {str(i): {} for i in range(514)}}),
            "513 optional properties",
        ),
    ],
    ids=["regex", "ebnf", "deep", "deeper", "tag", "counted", "optional"],
)
def test_constraints_too_slow_to_compile_are_refused(name: str, text: str, problem: str) -> None:
    from sglang.srt.sampling.sampling_params import SamplingParams

    with pytest.raises(FieldError, match=f"^{name} is too large to be compiled: .*{problem}"):
        limits.check_constraints(SamplingParams(**{name: text}))
    many = [str(i) for i in range(1000)]
    required = json.dumps({"properties": {key: {} for key in many}, "required": many})
    for right in (nested(60), "{", '{"type": "object"}', required):
        limits.check_constraints(SamplingParams(json_schema=right))
