"""The study of the onset's constants: its rule against the oracle, and what its parts compute."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from bench import common
from bench.onset import decide, guarantee, loops, rule, templates
from bench.onset.generation import ATTENTION, Limits, Row, generate
from bench.onset.rule import Setting
from oracle import delta_bits, is_reached

V = 16


def looping(seed: int, length: int = 140) -> list[int]:
    """A text of random tokens that now and then goes round."""
    rng, text = random.Random(seed), list[int]()
    while len(text) < length:
        text += [rng.randrange(V) for _ in range(rng.randint(1, 6))] * rng.choice([1, 1, 4, 20])
    return text[:length]


def lowerings(text: list[int], setting: Setting) -> np.ndarray[Any, Any]:
    """What `lower_rows` takes off after each prefix of a text, float64 [tokens + 1, V]."""
    x = np.array([text], dtype=np.int32)
    runs, since = np.zeros((1, rule.WINDOW + 1), np.int32), np.full(1, -1, np.int32)
    seen, row = np.zeros((1, V), bool), rule.table([setting])
    found = []
    for count in range(len(text) + 1):
        logits = np.zeros((1, V), np.float32)
        rule.lower_rows(logits, x, np.array([count], np.int32), runs, row, since, seen)
        found.append(-logits[0].astype(np.float64))
    return np.array(found)


@pytest.mark.parametrize("onset", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_shipped_constants_are_the_spec(seed: int, onset: int) -> None:
    text, alpha = looping(seed), 0.3
    found = lowerings(text, Setting(alpha=alpha, onset=onset))
    for count in range(0, len(text) + 1, 7):
        expected = np.zeros(V)
        if is_reached([], text[:count], False, 512, onset):
            delta = delta_bits(text[:count], V, 512, 32, "marginal", onset=onset)
            expected = alpha * (math.log2(V) - np.array(delta))
        np.testing.assert_allclose(found[count], expected, atol=1e-5)


def test_harm_counts_the_true_next_tokens_that_are_lowered() -> None:
    text, setting = looping(4), Setting()
    each = lowerings(text, setting)
    true = [each[count, text[count]] for count in range(1, len(text))]
    lowered, nats, first, period = rule.harm(np.array(text, np.int32), V, rule.table([setting])[0])
    assert lowered == sum(amount > 0 for amount in true)
    assert nats == pytest.approx(sum(true), abs=1e-4)
    assert first == rule.first_loop(np.array(text, np.int32), rule.table([setting])[0])
    assert 0 < first < len(text)
    assert text[first - 16 : first] == text[first - 16 - period : first - period]


# 0 to 4, then `1 2 3 4` six times, then 40 tokens without a loop.
LOOP = [0, *[1, 2, 3, 4] * 6]
AFTER = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 5, 7, 9, 11, 13, 15, 6, 8] * 1


@pytest.mark.parametrize(
    ("setting", "loop_bits", "after_bits"),
    [
        (Setting(), 21.006, True),
        (Setting(growth=0), 5.2515, True),
        (Setting(growth=2), 7 * 5.2515, True),
        (Setting(shortest=24), 0, False),
        (Setting(shortest=24, times=5), 21.006, True),
        (Setting(shortest=20, growing=24), 5.2515, True),
        (Setting(half_life=0), 21.006, False),
        (Setting(forget=20), 21.006, False),
        (Setting(looped=1), 21.006, False),
    ],
)
def test_what_each_constant_does(setting: Setting, loop_bits: float, after_bits: bool) -> None:
    """SPEC's worked example; behind the loop, whether a token that never was in one is lowered."""
    found = lowerings(LOOP + AFTER, setting) / 0.15
    assert found[len(LOOP), 1] == pytest.approx(loop_bits, abs=1e-3)
    assert bool(found[-1, 8] > 0) == after_bits


def test_a_half_life_halves() -> None:
    for_good = lowerings(LOOP + AFTER, Setting())[-1]
    halved = lowerings(LOOP + AFTER, Setting(half_life=len(AFTER)))[-1]
    assert for_good.max() > 0
    np.testing.assert_allclose(halved, for_good / 2, rtol=1e-5)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=V, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    config._attn_implementation = ATTENTION
    return Qwen2ForCausalLM(config).eval()


PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_known_tokens_change_nothing(model: Any, temperature: float) -> None:
    """Nor does what else is in a batch, nor transformers' own attention."""
    limits, setting = Limits(50, None, temperature), Setting()
    rows = [Row(i, [], setting) for i in range(3)]
    outputs = generate(model, PROMPTS, rows, limits, "")
    known = [Row(i, outputs[i][: 10 * i + 5], setting) for i in range(3)]
    assert generate(model, PROMPTS, known, limits, "") == outputs
    assert generate(model, PROMPTS, rows[1:2], limits, "") == outputs[1:2]
    if not temperature:
        plain = [Row(0, [], Setting(alpha=0))]
        ids = model.generate(torch.tensor(PROMPTS[:1]), max_new_tokens=50, do_sample=False)
        assert generate(model, PROMPTS, plain, limits, "") == [ids[0, 3:].tolist()]


def test_an_output_ends_before_its_end_token(model: Any) -> None:
    rows = [Row(i, [], Setting(alpha=0)) for i in range(3)]
    free = generate(model, PROMPTS, rows, Limits(50, None, 2.0), "")
    end = free[0][7]
    ended = generate(model, PROMPTS, rows, Limits(50, end, 2.0), "")
    assert ended == [output[: output.index(end)] if end in output else output for output in free]


@pytest.mark.parametrize("onset", [1, 3])
@pytest.mark.parametrize("margin", [0, 20])
def test_a_loop_ends_within_the_bound(onset: int, margin: float) -> None:
    periods, given = [1, 5, 16, 40, 500, 511], (2048, 0.3, onset, margin)
    runs = guarantee.stuck([list(range(period)) for period in periods], *given)
    assert runs == [guarantee.run_of_plain_loop(period, *given) for period in periods]
    assert all(
        run <= guarantee.longest_run(period, *given)
        for run, period in zip(runs, periods, strict=True)
    )


def test_a_saturated_run_grows_no_more() -> None:
    assert guarantee.longest_run(511, 2048, 0.05, 2, 100) == math.inf
    assert guarantee.copies_of(math.inf, 511) is None


def test_a_model_that_returns_to_its_loop_stays_within_the_bound() -> None:
    output = guarantee.returning(range(3), 64, 0.3, 2, 10)
    loop = loops.longest_repetition(output)
    assert (
        3
        < loop.repeats
        <= guarantee.copies_of(guarantee.longest_run(loop.period, 64, 0.3, 2, 10), loop.period)
    )


def test_bits_of_a_parse() -> None:
    """Two literals, then one phrase of six tokens from a distance of two."""
    found = templates.bits(np.array([1, 2] * 4, np.int32), V)
    np.testing.assert_allclose(found, [4, 4, *[(1 + math.log2(6)) / 6] * 6])


def test_the_lowest_rate_is_that_of_the_cheapest_span() -> None:
    text = np.array([*range(100), *[1, 2] * 64, *range(200, 300)], np.int32)
    low = templates.lowest(text, 1024)
    assert low[0] < low[1] < 0.2 < low[2] < 10
    assert low[3] == math.inf


def test_the_readme_has_the_table_of_the_harm() -> None:
    page = (common.ROOT / "bench" / "README.md").read_text()
    harm, *of_models = decide.tables(common.RESULTS / "onset").split("\n\n")
    assert harm in page
    assert len(of_models) == 2 * len(decide.LOOPS)  # a title and a table each
    guaranteed = json.loads((common.RESULTS / "onset" / "guarantee.json").read_text())
    assert all(case["within_bound"] and case["as_a_plain_loop"] for case in guaranteed["cases"])
    assert all(case["most_copies"] <= case["bound"] for case in guaranteed["returning"])
