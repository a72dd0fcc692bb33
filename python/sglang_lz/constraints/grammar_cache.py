"""Limits on clients' grammars: how much memory their caches use, and how long a token may take.

Upstream and XGrammar's compiler each cache every compiled grammar for the lifetime of the server.
Clients choose the grammars, so here both caches evict the oldest ones.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sglang.srt.constrained import xgrammar_backend
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend
from xgrammar import GrammarCompiler

from proper_tokens.threads import make_way
from sglang_lz.constraints.matchers import TimedMatcher, end_token
from sglang_lz.constraints.schemas import SchemaCompiler

MOST_BYTES = 64 << 20
"""The size limit of each of the two grammar caches."""

_NICENESS = 10  # the model has priority

Key = tuple[str, str]


class BoundedCache(dict[Key, Any]):
    """Upstream's grammars by kind and text; it keeps the newest up to a total size.

    Args:
        most: the limit in bytes; the newest grammar is kept whatever its size.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Any) -> None:
        self.pop(key, None)  # so that it becomes the newest
        super().__setitem__(key, value)
        total = sum(map(_bytes_of, self.items()))
        while total > self._most and len(self) > 1:
            oldest = next(iter(self))
            total -= _bytes_of((oldest, self.pop(oldest)))


def bound(outer: BaseGrammarBackend, inner: BaseGrammarBackend, is_pipeline: bool = False) -> None:
    """Make a scheduler's grammar backend evict old grammars and detect slow ones.

    Args:
        outer: the backend; the one for thinking sections wraps another.
        inner: the wrapped backend, or the same as `outer`.
        is_pipeline: whether the scheduler is that of a stage of a pipeline.
    """
    if isinstance(inner, xgrammar_backend.XGrammarGrammarBackend):
        info = inner._tokenizer_info
        inner.grammar_compiler = SchemaCompiler(
            GrammarCompiler(info, cache_limit_bytes=MOST_BYTES),
            any_whitespace=inner.any_whitespace,
            max_whitespace_cnt=inner.max_whitespace_cnt,
        )
        # This is not a patch: group `cpu` patches that file, and each group must apply on its own.
        xgrammar_backend.GrammarMatcher = TimedMatcher
        if is_pipeline:
            TimedMatcher.end_token = end_token(info.decoded_vocab)
    for backend in (inner, outer):
        backend.cache = BoundedCache()
        # XGrammar's own threads inherit the priority of the thread that starts them.
        backend.executor = ThreadPoolExecutor(initializer=make_way, initargs=(_NICENESS,))


def _bytes_of(item: tuple[Key, Any]) -> int:
    """The size of a grammar, as far as it is known, and its text; at least 256 bytes."""
    (_, text), value = item
    compiled = getattr(getattr(value, "grammar", None) or value, "ctx", None)
    return 256 + len(text) + int(getattr(compiled, "memory_size_bytes", 0))
