"""Upstream's caches of grammars forget the oldest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang_lz.constraints import grammar_cache
from sglang_lz.constraints.grammar_cache import BoundedCache
from sglang_lz.demo import MODEL_PATH


def grammar(size: int) -> Any:
    return SimpleNamespace(ctx=SimpleNamespace(memory_size_bytes=size))


def test_the_oldest_grammars_are_forgotten() -> None:
    cache = BoundedCache(10_000)
    for i in range(100):
        cache["regex", str(i)] = grammar(3000)
        assert list(cache) == [("regex", str(k)) for k in range(max(0, i - 2), i + 1)]
    cache["regex", "98"] = grammar(3000)
    assert list(cache)[-1] == ("regex", "98")
    cache["regex", "large"] = SimpleNamespace(grammar=grammar(10**9))
    assert list(cache) == [("regex", "large")]


def test_objects_without_a_size_count_by_their_text() -> None:
    cache = BoundedCache(10_000)
    for i in range(100):
        cache["json", str(i) * 500] = object()
    assert 0 < len(cache) < 20


def test_upstreams_backend_forgets() -> None:
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    backend = XGrammarGrammarBackend(tokenizer, vocab_size=len(tokenizer), model_eos_token_ids=[0])
    grammar_cache.bound(backend, backend)
    key = ("regex", "a+b")
    backend.set_cache(key, backend.dispatch_regex(key[1]))
    assert backend.get_cached_or_future_value(key, False)[1]
    assert 0 < backend.grammar_compiler.get_cache_size_bytes() < grammar_cache.MOST_BYTES


def test_a_compiler_that_keeps_too_much_is_cleared() -> None:
    """One that counts half of what it has cleared, as XGrammar's does."""
    compiler = SimpleNamespace(size=0, cleared=0)
    compiler.get_cache_size_bytes = lambda: compiler.size

    def clear_cache() -> None:
        compiler.cleared += 1
        compiler.size //= 2

    compiler.clear_cache = clear_cache
    cache = BoundedCache(10_000, compiler)
    for i in range(100):
        compiler.size += 1000
        cache["regex", str(i)] = grammar(10)
    assert compiler.cleared == 9
