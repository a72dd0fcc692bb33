"""The request fields: defaults, ranges, and refusals that name field, value and range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty.fields.kinds import Kind, boolean, choice, integer, number
from lz_penalty.fields.lz import FIELDS, LZParams

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.integers()),
)


def test_defaults() -> None:
    assert LZParams.parse({}, 1024) == LZParams(0.0, 512, 32, False, "marginal")


@pytest.mark.parametrize(
    ("maximum", "given_window", "window", "buffer"),
    [(1024, None, 512, 32), (100, None, 100, 32), (20, None, 20, 20), (1024, 7, 7, 7)],
)
def test_defaults_never_exceed_their_bounds(
    maximum: int, given_window: int | None, window: int, buffer: int
) -> None:
    params = LZParams.parse({"lz_window_size": given_window}, maximum)
    assert (params.window_size, params.buffer_size) == (window, buffer)


@pytest.mark.parametrize("name", ["lz_", "lz_penalti", "lz_params"])
def test_a_misspelt_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be spelt lz_"):
        LZParams.parse({"temperature": 1, "lz_penalty": 0.1, name: None}, 64)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, ANYTHING)), st.integers(1, 8192))
def test_anything_is_either_refused_or_within_its_range(
    fields: dict[str, object], maximum: int
) -> None:
    try:
        params = LZParams.parse(fields, maximum)
    except ValueError as error:
        assert any(str(error).startswith(name) for name in FIELDS)  # noqa: PT017
        return
    assert type(params.penalty) is float
    assert 0 <= params.penalty <= 10
    assert 1 <= params.buffer_size <= params.window_size <= maximum
    assert type(params.include_prompt) is bool
    assert params.cost in ("marginal", "rate")
    assert 0 <= params.onset <= 64


@pytest.mark.parametrize(
    ("kind", "schema", "text", "right", "wrong"),
    [
        (
            number(0, 2.5),
            {"type": "number", "minimum": 0, "maximum": 2.5},
            "number, 0 to 2.5",
            [0, 1, 2.5],
            [-1, 2.6, True, "1"],
        ),
        (
            integer(0, 64),
            {"type": "integer", "minimum": 0, "maximum": 64},
            "integer, 0 to 64",
            [0, 64, 1.0],
            [-1, 65, 65.0, 1.5, False],
        ),
        (
            integer(1, "--most"),
            {"type": "integer", "minimum": 1},
            "integer, 1 to the server's `--most`",
            [1, 8],
            [0, 9, True],
        ),
        (
            integer(1, "lz_other"),
            {"type": "integer", "minimum": 1},
            "integer, 1 to `lz_other`",
            [1, 8],
            [0, 9],
        ),
        (boolean(), {"type": "boolean"}, "boolean", [True, False], [0, 1, "true"]),
        (
            choice("a", "b"),
            {"type": "string", "enum": ["a", "b"]},
            '`"a"` or `"b"`',
            ["a", "b"],
            ["c", 1, ["a"]],
        ),
    ],
)
def test_each_kind_of_field(
    kind: Kind, schema: dict[str, object], text: str, right: list[object], wrong: list[object]
) -> None:
    """The kinds that a new field can have; the upper end is 8 where another value holds it."""
    assert (kind.schema, kind.text) == (schema, text)
    assert [value for value in right + wrong if kind.takes(value, 8)] == right
    assert kind.bound is None or f"in [1, 8], the upper end being {text[14:].replace('`', '')}" in (
        kind.allowed.format(largest=8)
    )
