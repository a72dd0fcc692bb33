"""The demo model without its server: logits, stop tokens, texts of tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from oracle import Logprobs, numbers_of
from server.launch import model_path


@functools.cache
def _model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )


@functools.cache
def tokenizer() -> Any:
    """The demo model's."""
    return AutoTokenizer.from_pretrained(model_path())


@functools.cache
def numbers() -> frozenset[int]:
    """N of docs/SPEC.md section 9: the demo model's tokens that are numbers."""
    return numbers_of([tokenizer().decode([token]) for token in range(len(tokenizer()))])


def logits(model: Path, prompt: Sequence[int], outputs: Sequence[int]) -> Logprobs:
    """The model's logits after the prompt and each number of outputs, float64 [len(outputs), V].

    Args:
        model: its folder.
        prompt: ids.
        outputs: ids.
    """
    tokens = torch.tensor([[*prompt, *outputs]])
    with torch.inference_mode():
        after = _model(model)(tokens, logits_to_keep=len(outputs) + 1).logits[0, :-1]
    return after.double().numpy()


def normalisers(model: Path, prompt: Sequence[int], outputs: Sequence[int]) -> list[float]:
    """The log of the sum of exp(logits) after the prompt and each number of outputs.

    Arguments are as in `logits`.
    """
    return [float(np.logaddexp.reduce(row)) for row in logits(model, prompt, outputs)]


def stop_ids() -> tuple[int, ...]:
    """The tokens that end every request."""
    return (tokenizer().eos_token_id,)


@functools.cache
def sequences(breakers: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The token sequences that hold a breaker: one token, or one that begins it and the rest."""
    every = tokenizer()
    words = [every.decode([token]) for token in range(len(every))]
    found = []
    for breaker in breakers:
        for token, word in enumerate(words):
            if breaker in word:
                found.append((token,))
                continue
            for size in range(1, len(breaker)):
                if word.endswith(breaker[:size]):
                    rest = every.encode(breaker[size:], add_special_tokens=False)
                    found.append((token, *rest[:20]))
    return tuple(found)
