"""Upstream's caches of grammars forget the oldest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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


def test_upstreams_backend_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend
    from transformers import AutoTokenizer

    monkeypatch.setattr(grammar_cache, "MOST_BYTES", 200_000)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    backend = XGrammarGrammarBackend(tokenizer, vocab_size=len(tokenizer), model_eos_token_ids=[0])
    grammar_cache.bound(backend, backend)
    compiler, sizes = backend.grammar_compiler, []
    for i in range(100):
        key = ("regex", f"[a-z]{{{i % 30 + 1}}}b{i}")
        backend.set_cache(key, backend.dispatch_regex(key[1]))
        assert backend.get_cached_or_future_value(key, False)[1]
        sizes.append(compiler.get_cache_size_bytes())
    assert sizes[-1] < max(sizes) < 1.5 * compiler.cache_limit_bytes == 300_000
