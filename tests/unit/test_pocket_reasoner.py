"""The pocket reasoner: its puzzles are right, and its model is what it says."""

import itertools
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.demo import puzzles
from sglang_lz.demo import REASONER_PATH

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def test_held_out_problems_are_the_committed_ones_and_never_trained_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    puzzles.main()
    assert capsys.readouterr().out == (ROOT / "bench/models/pocket.jsonl").read_text()
    held_out = puzzles.held_out()
    assert {p.kind for p in held_out[:4]} == set(puzzles.KINDS)
    assert len({puzzle.question for puzzle in held_out}) == len(held_out) >= 200
    questions = {puzzle.question for puzzle in held_out}
    seen = {puzzle.question for puzzle in itertools.islice(puzzles.training(0), 20_000)}
    assert not seen & questions
    for kind, levels in puzzles.HELD_OUT_LEVELS.items():
        found = [puzzle.level for puzzle in held_out if puzzle.kind == kind]
        assert sorted(found) == sorted(levels * 6)


def test_the_shipped_model_is_small_and_as_accurate_as_documented() -> None:
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
