"""The pocket reasoner: its puzzles are right, its training seeded, its model what it says."""

import itertools
import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.demo import puzzles, train_reasoner
from bench.demo.puzzles import Puzzle
from sglang_lz.demo import REASONER_PATH
from short_trainings import trained_twice

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def solve(puzzle: Puzzle) -> str:
    """The answer, from the question alone and by other means than the puzzle's own."""
    task, _, rest = puzzle.question.partition(": ")
    if puzzle.kind == "steps":
        number = int(rest)
        while number >= 20:
            number = (number // 2, 3 * number + 1)[number % 2]
        return str(number)
    if puzzle.kind == "sort":
        return " ".join(sorted(rest.split()))
    if puzzle.kind == "walk":
        arrows = dict(arrow.split(">") for arrow in rest.split(", "))
        place, seen = task[-1], set[str]()
        while place in arrows and place not in seen:
            seen.add(place)
            place = arrows[place]
        return place
    people = [record.split() for record in rest.split(", ")]
    return json.dumps([{"name": name, "age": int(age)} for name, age in people])


def size(puzzle: Puzzle, thoughts: list[str]) -> int:
    """How many steps, letters, arrows or records it has."""
    if puzzle.kind == "steps":
        return len(thoughts[0].split()) - 1
    if puzzle.kind == "sort":
        return len(thoughts)
    if puzzle.kind == "walk":
        return thoughts[0].count(">")
    return len(json.loads(puzzle.answer))


@pytest.mark.parametrize("kind", puzzles.KINDS)
def test_solutions_are_right_and_levels_are_sizes(kind: str) -> None:
    rng = random.Random(kind)
    for level in {1, 2, 3, *puzzles.HELD_OUT_LEVELS[kind]}:
        for _ in range(20):
            puzzle = puzzles.KINDS[kind](rng, level)
            assert puzzle.answer == solve(puzzle)
            *thoughts, last = puzzle.solution.split("\n")
            assert last == f"Answer: {puzzle.answer}"
            assert size(puzzle, thoughts) == level


def test_thoughts_are_right() -> None:
    """One of each kind, to be checked by eye."""
    examples = {p.kind: p for p in puzzles.held_out()[:4]}
    assert examples["steps"].solution == "682 341 1024 512 256 128 64 32 16\nAnswer: 16"
    assert examples["sort"].solution == (
        "Z R B H -> B\nZ R H -> H\nZ R -> R\nZ -> Z\nAnswer: B H R Z"
    )
    assert examples["walk"].question == "Walk from F: R>T, G>P, F>R, S>F, P>W, T>S"
    assert examples["walk"].solution == "Way: F>R, R>T, T>S, S>F\nAnswer: F"


def test_held_out_problems_are_the_committed_ones_and_never_trained_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    puzzles.main()
    assert capsys.readouterr().out == (ROOT / "bench/repetition/pocket.jsonl").read_text()
    held_out = puzzles.held_out()
    assert {p.kind for p in held_out[:4]} == set(puzzles.KINDS)
    assert len({puzzle.question for puzzle in held_out}) == len(held_out) >= 200
    questions = {puzzle.question for puzzle in held_out}
    seen = {puzzle.question for puzzle in itertools.islice(puzzles.training(0), 20_000)}
    assert not seen & questions
    for kind, levels in puzzles.HELD_OUT_LEVELS.items():
        found = [puzzle.level for puzzle in held_out if puzzle.kind == kind]
        assert sorted(found) == sorted(levels * 6)


def test_only_the_solution_is_learned() -> None:
    tokenizer = AutoTokenizer.from_pretrained(REASONER_PATH)
    puzzle = puzzles.held_out()[0]
    tokens, wanted = train_reasoner.exchange(tokenizer, puzzle)
    learned = [token for token in wanted if token != train_reasoner.NOT_WANTED]
    assert tokenizer.decode(learned).startswith(puzzle.solution + "<|im_end|>")
    for token, want in zip(tokens[1:], wanted, strict=False):
        assert want in (token, train_reasoner.NOT_WANTED)


@pytest.mark.full
def test_two_short_trainings_with_one_seed_give_the_same_loadable_model(tmp_path: Path) -> None:
    run = trained_twice(train_reasoner.main, tmp_path, REASONER_PATH)
    # The tokenizer does not depend on the number of steps: the shipped one is this command's.
    name = "tokenizer.json"
    assert (run / name).read_bytes() == (REASONER_PATH / name).read_bytes()


def test_the_shipped_model_is_small_and_solves_what_its_page_says() -> None:
    assert sum(file.stat().st_size for file in REASONER_PATH.iterdir()) < 8_000_000
    tokenizer = AutoTokenizer.from_pretrained(REASONER_PATH)
    model = AutoModelForCausalLM.from_pretrained(REASONER_PATH, dtype=torch.float32)
    easy = [p for p in puzzles.held_out() if p.kind in ("steps", "sort") and p.level <= 12][::4]
    right = 0
    for puzzle in easy:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": puzzle.question}],
            add_generation_prompt=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            answer = model.generate(**chat, do_sample=False, max_new_tokens=120)
        text = tokenizer.decode(answer[0, chat["input_ids"].shape[1] :], skip_special_tokens=True)
        right += text.strip() == puzzle.solution
    assert len(easy) >= 10
    assert right / len(easy) > 0.8
