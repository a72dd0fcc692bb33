"""Prompts that are long."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from lz_penalty.fields.table import FieldError
from sglang_lz.bounds.texts import CHARACTERS_PER_TOKEN, SHORT, encode_texts, tokenized
from sglang_lz.demo import MODEL_PATH

CONTEXT = 4096


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_PATH)


def encoded(tokenizer: Any, texts: list[Any], **options: Any) -> dict[str, Any]:
    manager = SimpleNamespace(tokenizer=tokenizer, context_len=CONTEXT)
    return asyncio.run(encode_texts(manager, texts, **options))


@pytest.mark.parametrize("texts", [[], ["a"], ["a b", ""], ["for x in y: " * 1000, "z"]], ids=len)
def test_tokens_are_the_tokenizers_own(tokenizer: Any, texts: list[str]) -> None:
    assert encoded(tokenizer, texts)["input_ids"] == [tokenizer.encode(one) for one in texts]


def test_pairs_have_types(tokenizer: Any) -> None:
    pairs = [["a", "b " * SHORT], ["c", "d"]]
    own = tokenizer(pairs, return_token_type_ids=True)
    found = encoded(tokenizer, pairs, return_token_type_ids=True)
    assert found["input_ids"] == own["input_ids"]
    assert found["token_type_ids"] == own["token_type_ids"]
    with pytest.raises(FieldError, match="text must be at most"):
        encoded(tokenizer, [["a", "x" * (CHARACTERS_PER_TOKEN * CONTEXT)]])


@pytest.mark.parametrize(("length", "is_apart"), [(SHORT, False), (SHORT + 1, True)])
def test_long_texts_are_tokenized_in_another_thread(length: int, is_apart: bool) -> None:
    threads = []

    class Slow:
        """A tokenizer of Python code alone: it has no call for several texts."""

        def encode(self, text: str) -> list[int]:
            threads.append(threading.current_thread())
            return [len(text)]

    assert encoded(Slow(), ["x" * length])["input_ids"] == [[length]]
    assert (threads != [threading.main_thread()]) == is_apart


def test_a_text_longer_than_any_context_is_refused(tokenizer: Any) -> None:
    most = CHARACTERS_PER_TOKEN * CONTEXT
    assert encoded(tokenizer, ["x" * most])["input_ids"][0]
    with pytest.raises(
        FieldError, match=f"text must be at most {most} characters, .* got {most + 1}"
    ):
        encoded(tokenizer, ["a", "x" * (most + 1)])


def test_one_prompt_to_tokenize_or_several(tokenizer: Any) -> None:
    manager = SimpleNamespace(tokenizer=tokenizer, context_len=CONTEXT)
    for prompt in ("a b c", ["a b c", "d" * 9000]):
        request = SimpleNamespace(prompt=prompt, add_special_tokens=False)
        texts = [prompt] if isinstance(prompt, str) else prompt
        own = [tokenizer.encode(one, add_special_tokens=False) for one in texts]
        assert asyncio.run(tokenized(manager, request)) == own
