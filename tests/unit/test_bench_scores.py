"""Scores of repetition against their definitions, written plainly."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.models import tables
from bench.models.grid import Item, Key
from bench.models.result import cell
from bench.models.scores import Scored, copied, repetition_of_code, score, templated

few_tokens = st.lists(st.integers(0, 2), max_size=40)
line = st.text("a1+ ", max_size=12)


def naive_copied(tokens: list[int]) -> float:
    ends = range(7, len(tokens))
    hits = [any(tokens[e - 7 : e + 1] == tokens[b - 7 : b + 1] for b in range(7, e)) for e in ends][
        -400:
    ]
    return sum(hits) / len(hits) if hits else 0.0


@given(st.tuples(few_tokens, few_tokens, st.integers(1, 30)).map(lambda t: t[0] + t[1] * t[2]))
def test_copied_equals_its_definition(tokens: list[int]) -> None:
    assert copied(tokens) == naive_copied(tokens)


def test_only_the_newest_tokens_count() -> None:
    loop, fresh = [1, 2, 3] * 300, list(range(10, 410))
    assert copied(loop) == 1
    assert copied(loop + fresh) == 0
    assert copied(fresh + loop[:200]) == (200 - 10) / 400


def test_lines_that_differ_in_numbers() -> None:
    items = [f"{i}. {'The' if i % 2 else 'the'} {i / 2:g}  stars" for i in range(10)]
    assert templated("\n".join(items)) == 7 / 10
    assert templated("\n".join([*items[:3], "the stars of old", *items[3:]])) == 7 / 11
    assert templated("- 1\n" * 100) == templated("") == 0  # too short


def naive_distance(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    if not one or not other:
        return len(one) + len(other)
    return min(
        naive_distance(one[1:], other) + 1,
        naive_distance(one, other[1:]) + 1,
        naive_distance(one[1:], other[1:]) + (one[0] != other[0]),
    )


def naive_sim_line(lines: list[tuple[str, ...]]) -> float:
    sets: list[tuple[str, ...]] = []
    for one in lines:
        if not any(1 - naive_distance(one, o) / max(len(one), len(o)) > 0.8 for o in sets):
            sets.append(one)
    return 1 - len(sets) / len(lines)


@given(st.lists(line, min_size=1, max_size=8))
def test_similar_lines_equal_their_definition(lines: list[str]) -> None:
    tokens = [tuple(re.findall(r"[a1]+|\+", one)) for one in lines]
    tokens = [one for one in tokens if 0 < len(one) <= 7]
    if tokens:
        code = "\n".join(" ".join(one) for one in tokens)
        assert repetition_of_code(code)["sim_line"] == pytest.approx(naive_sim_line(tokens))


def test_repetition_of_code_by_hand() -> None:
    code = "a = 1\n\n    a = 1\nprint(a, b, c, d)\nprint(a, b, c, e)\nprint(a, x, c, y)"
    found = repetition_of_code(code)
    assert found["rep_line"] == pytest.approx(1 / 5)  # white space aside, one line is there twice
    assert found["sim_line"] == pytest.approx(2 / 5)  # and one is 1 of 10 tokens from another
    assert found["rep_3"] == pytest.approx(11 / 34)
    assert set(repetition_of_code("\n").values()) == {None}


def test_a_sample() -> None:
    ids = [1, 2, 3, 4, 5, 6, 7] + [8] * 30
    sample = {"item": "t/1", "variant": "none", "temperature": 0.0, "seed": 0, "text": "```\na\na"}
    sample |= {"token_ids": ids, "finish_reason": "length", "completion_tokens": 37}
    values = score(sample, None, code=True).values
    assert "accuracy" not in values
    found = {name for name, value in values.items() if value == 1}
    assert found == {"degenerate", "final_loop", "near_copies", "cut_off"}
    assert values["rep_line"] == 0.5
    assert values["rep_4_gram"] == pytest.approx(26 / 34)
    plain = score(
        sample | {"text": "\n".join(f"{i}. new line" for i in range(7))}, True, code=False
    )
    assert "rep_line" not in plain.values
    assert (plain.values["accuracy"], plain.values["template"]) == (1, 1)  # 4 of 7 lines
    six = score(sample | {"text": "\n".join(f"{i}. new line" for i in range(6))}, False, code=False)
    assert (six.values["accuracy"], six.values["template"]) == (0, 0)  # 3 of 6


def test_runs_over_other_prompts_are_pooled() -> None:
    """As one run over all of their prompts."""
    key = [Key(f"t/{i}", "none", 0.0, 0) for i in range(5)]
    values = [{"degenerate": float(i == 3), "tokens": 10.0 * i} for i in range(5)]
    samples = [Scored(key[i], "", "stop", 0, values[i]) for i in range(5)]
    items = {k.item: Item(k.item, "", None) for k in key}
    about = {"variant": "none", "temperature": 0.0}
    parts = [about | cell(part, None, items) for part in (samples[:2], samples[2:])]
    found, whole = tables.as_one(parts), cell(samples, None, items)
    assert found["items"] == 5
    assert found["degenerate"]["mean"] == whole["degenerate"]["mean"] == 0.2
    assert found["tokens"]["mean"] == whole["tokens"]["mean"] == 20
    assert found["degenerate"]["ci"][0] == 0 < found["degenerate"]["ci"][1] < 1
