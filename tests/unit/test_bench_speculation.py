"""What bench.speculation makes of answers, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.speculation import __main__ as speculation
from bench.speculation.drafters import Penalty, Text, best_source, drafters, likeliest, play
from bench.speculation.steps import Answer, onset_reached, same_until

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
LOOP = [1, 2, 3, 4] * 6


def penalties(tokens: list[int], onset: int) -> dict[int, float]:
    text = Text.of([])
    for token in tokens:
        text = text.then(token)
    return Penalty(1.0, onset, 16).of(text.tokens, text.runs)


class TestOnset:
    def test_the_examples_of_the_specification(self) -> None:
        line = list(range(40))
        assert onset_reached([7] * 15, 2) is None
        assert onset_reached(line * 2, 2) is None
        assert onset_reached(line * 3, 2) == 120
        assert onset_reached([7] * 20, 2) == 17

    def test_a_period_of_the_window_is_not_seen(self) -> None:
        line = list(range(40))
        assert onset_reached(line * 3, 2, window_size=41) == 120
        assert onset_reached(line * 3, 2, window_size=40) is None


class TestPenalty:
    def test_the_examples_of_the_specification(self) -> None:
        assert penalties(LOOP, 2) == pytest.approx({1: 21.006, 2: 2.415, 3: 3, 4: 4}, abs=1e-3)
        after = {7: 4, 4: 3, 3: 2.415, 2: 2, 1: 1.678}
        assert penalties([*LOOP, 7], 2) == pytest.approx(after, abs=1e-3)
        assert penalties([5] * 20, 2) == pytest.approx({5: 106.668}, abs=1e-3)

    def test_without_an_onset_it_is_the_papers(self) -> None:
        found = penalties([0, 1, 2, 0, 1], 0)
        assert found == pytest.approx({2: 4.830, 1: 4, 0: 3}, abs=1e-3)


class TestDrafters:
    def test_runs_grow_as_the_text_does(self) -> None:
        text = Text.of([1, 2, 1, 2, 1])
        assert text.tokens.tolist() == [1, 2, 1, 2, 1]
        assert text.runs.tolist() == [0, 3, 0, 1, 0]
        assert text.visible == 0
        assert text.then(1).visible == 1

    def test_a_plain_one_repeats_and_a_penalised_one_does_not(self) -> None:
        text = Text.of([])
        for token in LOOP:
            text = text.then(token)
        future = [1, 2, 3, 4, 1, 2, 3, 4]
        assert likeliest(text, future, 7, None) == 7
        assert likeliest(text, future, 7, Penalty(10.0, 2, 16)) == 0
        assert likeliest(text, [9], 7, None) == 0

    def test_the_best_source_is_chosen_with_the_answer_known(self) -> None:
        text = Text.of([1, 2, 3, 9, 1, 5, 6, 1])
        assert best_source(text, [2, 3, 9, 4], 7) == 3
        assert best_source(text, [5, 6, 1, 5], 7) == 4
        assert best_source(text, [5, 6, 1, 5], 2) == 2
        assert best_source(text, [3], 7) == 0

    def test_a_step_yields_its_accepted_drafts_and_one_token(self) -> None:
        assert play([1], list(range(9)), 1, lambda _, future: min(3, len(future))) == 2
        assert play([1], list(range(9)), 1, lambda *_: 0) == 8
        assert play([1], list(range(9)), 9, lambda *_: 0) == 0

    def test_only_tokens_from_the_onset_on_count(self) -> None:
        found = drafters([[1], [1]], [[5] * 19, [5, 6]], Penalty(0.15, 2, 16), 7)
        assert found["tokens"] == 2
        assert found["verify_steps"]["best source"] == 1
        assert found["accept_length"]["best source"] == 2


class Server:
    """Answers that are known, the first of them without a penalty."""

    def __init__(self, **answers: Answer) -> None:
        self.prompts = [[1]]
        self._answers = answers

    def answer(self, prompt: int, variant: str, max_tokens: int | None = None) -> Answer:
        answer = self._answers["none" if variant == speculation.NO_PENALTY else variant]
        if max_tokens is None:
            return answer
        return Answer(answer.tokens[:max_tokens], answer.steps // 2, answer.correct)


class TestUntilOnset:
    def test_equal_answers_are_counted_up_to_the_onset(self) -> None:
        server = Server(
            none=Answer([5] * 40, 8, [0, 8]), onset=Answer([5] * 17 + [6] * 3, 8, [0, 8])
        )
        found = speculation.until_onset(server, "onset", 2)  # type: ignore[arg-type]
        assert found["rows"] == [[17, 4, 3, 4]]
        assert (found["equal_tokens"], found["equal_verify_steps"]) == (17, 4)

    def test_the_step_that_passes_the_onset_may_accept_less(self) -> None:
        long = Answer([5, 6], 2, [1, 0, 0, 1])
        assert same_until(long, Answer([5, 6], 2, [1, 1]), onset_reached=True)
        assert not same_until(long, Answer([5, 6], 2, [1, 1]), onset_reached=False)
        assert not same_until(long, Answer([5, 6], 2, [0, 2]), onset_reached=True)
        assert not same_until(Answer([5, 6], 2, [1, 1]), long, onset_reached=True)

    @pytest.mark.parametrize(
        "other", [Answer([5, 7], 2, [2]), Answer([5, 6], 3, [3]), Answer([5, 6], 2, [1, 1])]
    )
    def test_any_difference_before_is_an_error(self, other: Answer) -> None:
        server = Server(none=Answer([5, 6], 2, [2]), onset=other)
        with pytest.raises(RuntimeError, match="differs before its onset"):
            speculation.until_onset(server, "onset", 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("file", sorted(RESULTS.glob("speculation-*.json")), ids=lambda f: f.stem)
def test_the_means_of_a_result_file_are_those_of_its_rows(file: Path) -> None:
    for variant in json.loads(file.read_text())["variants"].values():
        _, tokens, steps, tokens_inside, steps_inside = np.sum(variant["rows"], axis=0)
        length = (tokens + tokens_inside) / (steps + steps_inside)
        assert variant["accept_length"] == pytest.approx(length, abs=1e-3)
        if "until_onset" in variant:
            equal = np.sum(variant["until_onset"]["rows"], axis=0)
            assert variant["until_onset"]["equal_tokens"] == equal[0]


def test_the_guide_shows_the_result_of_the_puzzles() -> None:
    file = RESULTS / "speculation-pocket.json"
    page = (RESULTS.parent / "README.md").read_text()
    assert speculation.markdown(json.loads(file.read_text())) in page


def test_the_guide_shows_the_other_drafters() -> None:
    page = (RESULTS.parent / "README.md").read_text()
    for stem, model, names in (
        ("ngram", "demo model", ("marginal", "onset 2")),
        ("pocket", "pocket reasoner", ("marginal",)),
    ):
        variants = json.loads((RESULTS / f"speculation-{stem}.json").read_text())["variants"]
        for name in names:
            lengths = variants[f"lz_penalty 0.15, {name}"]["drafters"]["accept_length"]
            order = ("server", "plain", "penalised", "best source")
            cells = " | ".join(f"{lengths[drafter]:.2f}" for drafter in order)
            assert f"| {model}, {name} | {cells} |" in page
