"""What bench.speculation makes of answers, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.speculation import __main__ as speculation
from bench.speculation.steps import Answer, onset_reached, same_until

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


class TestOnset:
    def test_the_examples_of_the_specification(self) -> None:
        line = list(range(40))
        assert onset_reached([7] * 15, 2) is None
        assert onset_reached(line * 2, 2) is None
        assert onset_reached(line * 3, 2) == 120
        assert onset_reached([7] * 20, 2) == 17
        assert onset_reached([1, 2, 3, 4] * 6, 2) is None
        assert onset_reached([1, 2, 3, 4] * 7, 2) == 28

    def test_a_period_of_the_window_is_not_seen(self) -> None:
        line = list(range(40))
        assert onset_reached(line * 3, 2, window_size=41) == 120
        assert onset_reached(line * 3, 2, window_size=40) is None


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
