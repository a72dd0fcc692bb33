"""The penalty in `generate` of transformers, with the demo model, against the oracle."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.models.detector import is_degenerate
from lz_penalty.penalizer import Penalizer
from lz_penalty.transformers import LZPenalty
from oracle import delta_bits, has_memory, numbers_of, visible_history
from sglang_lz import demo

TOKENIZER = AutoTokenizer.from_pretrained(demo.MODEL_PATH, padding_side="left")
MODEL = AutoModelForCausalLM.from_pretrained(demo.MODEL_PATH, dtype=torch.float32)
VOCAB = MODEL.config.vocab_size
NUMBERS = numbers_of([TOKENIZER.decode([token]) for token in range(VOCAB)])
PROMPTS = ["The list is 1 2 3 4 5 6 7, and", "for x in " * 14 + "1 2 3, and", "The 'except' clause"]
IDS = {prompt: TOKENIZER(prompt)["input_ids"] for prompt in PROMPTS}
EARLY = {"penalty": 0.2, "onset": 1, "window_size": 64}
FIELDS = [{}, {"onset": 0, "cost": "rate", "include_prompt": True}, {"include_prompt": True}]
WRONG = [("penalty", 11), ("onset", 65), ("window_size", 8193), ("cost", "bits"), ("onsets", 3)]


class Recorded(LZPenalty):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        before = scores.clone()
        lowered = super().__call__(input_ids, scores)
        assert torch.equal(before, scores)
        self.__dict__.setdefault("calls", []).append((input_ids, (before - lowered).numpy()))
        return lowered


def generate(
    penalty: LZPenalty | None, *prompts: str, tokens: int = 100, **options: Any
) -> torch.Tensor:
    """What is generated after each prompt, [rows, tokens]; greedy unless the options say more."""
    options = {"do_sample": False, "max_new_tokens": tokens, **options}
    inputs = TOKENIZER([*prompts], padding=True, return_tensors="pt")
    outputs = MODEL.generate(**inputs, logits_processor=[penalty] if penalty else [], **options)
    return outputs[:, inputs["input_ids"].shape[1] :]


def expected(prompt: list[int], outputs: list[int], penalty: LZPenalty) -> np.ndarray:
    """By how much the oracle lowers each logit, float64 [V]."""
    p = penalty.lz
    memory = has_memory(prompt, outputs, p.include_prompt, p.window_size, p.onset, numbers=NUMBERS)
    own = visible_history(prompt, outputs, p.include_prompt), VOCAB, p.window_size, p.buffer_size
    delta = delta_bits(*own, p.cost, onset=p.onset, memory=memory, numbers=NUMBERS)
    return p.penalty * (math.log2(VOCAB) - np.array(delta))


def check_calls(penalty: Any, *prompts: str) -> None:
    """Compare the calls with the oracle; the prompts are those of their rows."""
    width, most = max(len(IDS[prompt]) for prompt in prompts), 0.0
    for ids, lowered_by in penalty.calls:
        for row, prompt in enumerate(prompts):
            right = expected(IDS[prompt], ids[row, width:].tolist(), penalty)
            np.testing.assert_allclose(lowered_by[row], right, atol=1e-3)
            most = max(most, right.max())
    assert most > penalty.lz.onset * penalty.lz.penalty * math.log2(VOCAB), "no loop grew"


def test_the_loop_of_the_demo_model_ends() -> None:
    assert is_degenerate(generate(None, PROMPTS[0], tokens=300)[0].tolist())
    penalty = LZPenalty(TOKENIZER, penalty=0.15, onset=3)
    assert not is_degenerate(generate(penalty, PROMPTS[0], tokens=300)[0].tolist())


def test_a_padded_batch_gives_what_each_prompt_gives_alone_and_the_oracle() -> None:
    penalty = LZPenalty(TOKENIZER, **EARLY)
    for prompt, row in zip(PROMPTS, generate(penalty, *PROMPTS), strict=True):
        outputs, alone = [], generate(penalty, prompt)[0].tolist()
        for _ in alone:
            logits = MODEL(torch.tensor([IDS[prompt] + outputs])).logits[0, -1].detach().numpy()
            outputs.append(int((logits - expected(IDS[prompt], outputs, penalty)).argmax()))
        assert outputs == alone == row[: len(alone)].tolist()
    assert not torch.equal(generate(penalty, PROMPTS[0]), generate(None, PROMPTS[0]))


@pytest.mark.parametrize("fields", FIELDS)
def test_several_sequences_are_sampled(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    penalty = Recorded(TOKENIZER, **{**EARLY, **fields})
    generate(penalty, *PROMPTS[:2], do_sample=True, temperature=0.1, num_return_sequences=2)
    check_calls(penalty, PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1])


def test_failed_drafts_are_taken_back() -> None:
    penalty: Any = Recorded(TOKENIZER, **EARLY)
    generate(penalty, PROMPTS[2], prompt_lookup_num_tokens=4)
    assert min(np.diff([ids.shape[1] for ids, _ in penalty.calls])) < -1
    check_calls(penalty, PROMPTS[2])


def test_a_generation_goes_on_or_begins() -> None:
    penalty, zeros = LZPenalty(TOKENIZER, **EARLY), torch.zeros(1, VOCAB)
    loop = [token for number in sorted(NUMBERS)[:6] for token in [*range(101, 108), number]]
    for begun in (loop[:42], loop, [5] * 41 + [loop[41]]):
        for end in [*range(3, 49), 40, 41]:
            right = expected(loop[:3], loop[3:end], penalty)
            np.testing.assert_allclose(-penalty(torch.tensor([loop[:end]]), zeros)[0], right, 1e-4)
        if begun == loop[:42]:  # which otherwise goes on
            penalty.reset()
        assert right.any()
        assert not penalty(torch.tensor([begun]), zeros).any()


def test_a_used_penalty_can_be_copied() -> None:
    penalty = LZPenalty(TOKENIZER, **EARLY)
    right = generate(penalty, PROMPTS[0])
    pickled = pickle.dumps(penalty)
    assert torch.equal(generate(pickle.loads(pickled), PROMPTS[0]), right)
    penalty.reset()
    assert len(pickle.dumps(penalty)) == len(pickled), "it holds the last ids"


def test_the_kernels_run_on_the_device_of_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, which may be another of several GPUs."""
    devices: list[Any] = []

    @contextlib.contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        devices.append(tensor.device)
        yield
        devices.pop()

    apply = Penalizer.apply

    def applied(*arguments: Any, **options: Any) -> None:
        assert devices == [torch.device("cpu")]
        apply(*arguments, **options)
        devices.append("applied")

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(Penalizer, "apply", applied)
    LZPenalty(None, penalty=0.2)(torch.tensor([[1, 2]]), torch.zeros(1, VOCAB))
    assert devices == [torch.device("cpu")]


def test_beams_are_refused() -> None:
    with pytest.raises(ValueError, match="num_beams must be 1 with LZPenalty"):
        generate(LZPenalty(TOKENIZER, **EARLY), PROMPTS[0], num_beams=2)


def test_scores_of_another_type_or_vocabulary() -> None:
    penalty, ids = LZPenalty(TOKENIZER, penalty=1, include_prompt=True), torch.tensor([[5, 6, 5]])
    scores = torch.randn(1, VOCAB, requires_grad=True).bfloat16()
    assert torch.equal(penalty(ids, scores), penalty(ids, scores.float()).bfloat16())
    with pytest.raises(ValueError, match=f"scores must have {VOCAB} columns"):
        penalty(ids, scores[:, 1:])


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_arguments_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"lz_{name} must be .* got {value!r}"):
        LZPenalty(TOKENIZER, **{"penalty": 1, name: value})
