"""Limits the length of prompts before they are tokenized, and tokenizes long ones in a thread.

Upstream tokenizes on the event loop, before it checks the number of tokens. There, 9 million
characters block all streams for 16 seconds and take gigabytes of memory.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lz_penalty.fields.table import FieldError

CHARACTERS_PER_TOKEN = 32
"""The most characters per token of the context: ordinary text has about 4, and even a text of
spaces or dashes stays below this."""
SHORT = 1 << 13
"""Texts up to this many characters are tokenized on the event loop; it takes less than 5 ms."""

_THREADS = ThreadPoolExecutor(4, thread_name_prefix="tokenize")


def most_characters(context_length: int) -> int:
    """The most characters of a text for a model with this context length in tokens."""
    return CHARACTERS_PER_TOKEN * context_length


async def encode_texts(manager: Any, texts: list[Any], **options: Any) -> dict[str, Any]:
    """Tokenize texts as the tokenizer does, but long ones off the event loop (upstream's hook).

    Args:
        manager: upstream's TokenizerManager.
        texts: strings, or pairs of strings.
        options: keyword arguments of the tokenizer's call.

    Returns:
        Lists by name, including `input_ids`, with one item per text.

    Raises:
        FieldError: a text has more than `CHARACTERS_PER_TOKEN` characters per token of the context.
    """
    most = most_characters(manager.context_len)
    lengths = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
    longest = max(lengths, default=0)
    if longest > most:
        raise FieldError(
            "text",
            f"text must be at most {most} characters, {CHARACTERS_PER_TOKEN} for each token of the "
            f"context, got {longest}.",
        )
    if texts and sum(lengths) <= SHORT:
        return dict(_encoded(manager.tokenizer, texts, options))
    found: dict[str, Any] = {"input_ids": []}
    for text in texts:  # one at a time: each needs some hundred bytes per character
        loop = asyncio.get_running_loop()
        one = await loop.run_in_executor(_THREADS, _encoded, manager.tokenizer, [text], options)
        for name, values in one.items():
            found.setdefault(name, []).extend(values)
    return found


async def tokenized(manager: Any, request: Any) -> list[list[int]]:
    """`encode_texts` of the prompts of upstream's TokenizeRequest (upstream's hook)."""
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    found = await encode_texts(manager, prompts, add_special_tokens=request.add_special_tokens)
    return [*found["input_ids"]]


def _encoded(tokenizer: Any, texts: list[Any], options: dict[str, Any]) -> Any:
    is_pairs = "return_token_type_ids" in options
    if not is_pairs and not getattr(tokenizer, "is_fast", False):
        return {"input_ids": [tokenizer.encode(text, **options) for text in texts]}
    return tokenizer(texts, **options)
