"""Proper tokens in SGLang's scheduler: the grammar of a request that asks for them."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarStats,
    InvalidGrammarObject,
)
from sglang.srt.constrained.reasoner_grammar_backend import (
    ReasonerGrammarBackend,
    ReasonerGrammarObject,
)
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

from sglang_lz.proper.language import language_of
from sglang_lz.proper.prepared import Prepared, prepare
from sglang_lz.proper.product import START, Product, State
from sglang_lz.proper.rules import ANY_TEXT, rules_of
from sglang_lz.proper.tokenizer import Unsupported
from sglang_lz.upstream import applies_constraint, frames_answers

logger = logging.getLogger(__name__)

PREFIX = "proper_"
"""Upstream's kinds of grammars, with proper tokens, begin with it."""
FRAMED = f"{PREFIX}framed"
PRODUCTS = 64
"""How many constraints are kept."""
PATIENCE = 100_000
"""How many more times upstream looks for a grammar before it gives up, of 5 ms at least: the first
one waits for the tokenizer to be prepared, and for numba where nothing was compiled yet."""


class ProperGrammar(BaseGrammarObject):  # type: ignore[misc]
    """A request's walk through the proper sequences of its constraint.

    Its mask has the layout of XGrammar's: packed bits, so both may be in one batch.
    """

    allocate_vocab_mask = staticmethod(XGrammarGrammarBackend.allocate_vocab_mask)
    move_vocab_mask = staticmethod(XGrammarGrammarBackend.move_vocab_mask)
    apply_vocab_mask = staticmethod(XGrammarGrammarBackend.apply_vocab_mask)

    def __init__(self, product: Product, stop_tokens: Sequence[int]) -> None:
        super().__init__()
        self._product = product
        self._stop_tokens = tuple(stop_tokens)
        self._states: list[State] = [START]
        self._stopped = False
        self.grammar_stats = GrammarStats(dispatch_type="proper_tokens")

    def accept_token(self, token: int) -> None:
        """Go on by one token.

        Raises:
            ValueError: the constraint does not allow it there.
        """
        if self._stopped:
            return
        state = self._states[-1]
        if token in self._stop_tokens and self._product.may_end(state):
            self._stopped = True
            self._states.append(state)
        else:
            after = self._product.next(state, token)
            if after is None:
                raise ValueError(f"Token not accepted by proper tokens: {token}")
            self._states.append(after)
            self._product.expect(after)
        self.current_token = token

    def rollback(self, k: int) -> None:
        """Go back by k tokens."""
        if k:
            del self._states[-k:]
            self._stopped = False

    def is_terminated(self) -> bool:
        """Whether the output has ended."""
        return self._stopped

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Set a row of a mask, [rows, ceil(V / 32)] int32, to the tokens that may come next."""
        row = vocab_mask[idx]
        mask = torch.from_numpy(self._product.mask(self._states[-1]).view("int32"))
        row.zero_()
        row[: len(mask)] = mask
        if self._product.may_end(self._states[-1]):
            for token in self._stop_tokens:
                bit = 1 << (token & 31)
                row[token >> 5] |= bit - (1 << 32) if bit >> 31 else bit

    def forced_run(self, most: int) -> list[int]:
        """The next tokens of which there is only one each, at most some."""
        run: list[int] = []
        state = self._states[-1]
        while not self._stopped and len(run) < most:
            only = None if self._product.may_end(state) else self._product.only(state)
            after = None if only is None else self._product.next(state, only)
            if only is None or after is None:
                break
            run.append(only)
            state = after
        return run

    def copy(self) -> ProperGrammar:
        """A walk in the same state."""
        other = ProperGrammar(self._product, self._stop_tokens)
        other._states = list(self._states)
        other._stopped = self._stopped
        other.current_token = self.current_token
        return other


class ProperTokens:
    """What a scheduler needs to serve proper tokens with its tokenizer.

    Args:
        tokenizer: the model's, of Hugging Face's fast ones.
        stop_tokens: the tokens that end an output.
    """

    def __init__(self, tokenizer: Any, stop_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_tokens = tuple(stop_tokens)
        self._prepared: Prepared | None = None
        self._products: OrderedDict[tuple[str, str], Product] = OrderedDict()
        self._lock = threading.Lock()

    def prepared(self) -> Prepared:
        """The tokenizer's automata; the first call makes or reads them.

        Raises:
            Unsupported: the tokenizer is not exact here.
        """
        with self._lock:
            if self._prepared is None:
                start = time.perf_counter()
                self._prepared = prepare(tokenizer_text(self._tokenizer))
                logger.info("Proper tokens ready in %.1f s", time.perf_counter() - start)
            return self._prepared

    def dispatch(self, kind: str, text: str) -> BaseGrammarObject:
        """The grammar of a constraint of one of our kinds (upstream's `dispatch_fallback`)."""
        try:
            if kind == FRAMED:
                raise Unsupported("this model frames its answers in tokens that are no text")
            return ProperGrammar(self._product(kind.removeprefix(PREFIX), text), self._stop_tokens)
        except Unsupported as error:
            return InvalidGrammarObject(f"proper_tokens cannot be exact: {error}")

    def _product(self, kind: str, text: str) -> Product:
        prepared = self.prepared()
        with self._lock:
            if (kind, text) in self._products:
                self._products.move_to_end((kind, text))
                return self._products[kind, text]
        product = Product(prepared, language_of(rules_of(kind, text)))
        if not product.can_end():
            raise Unsupported("it allows no text that the tokenizer would spell")
        with self._lock:
            self._products[kind, text] = product
            while len(self._products) > PRODUCTS:
                self._products.popitem(last=False)[1].stop()
        product.warm_in_background()
        return product


def tokenizer_text(tokenizer: Any) -> str:
    """The `tokenizer.json` of a tokenizer.

    Raises:
        Unsupported: it has none.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        raise Unsupported(f"the tokenizer {type(tokenizer).__name__} has no tokenizer.json")
    text: str = backend.to_str()
    return text


def serve_proper_tokens(manager: Any) -> None:
    """Let a scheduler serve proper tokens (upstream's hook).

    Args:
        manager: upstream's GrammarManager, with its backend.
    """
    from sglang.srt.runtime_context import get_context

    backend = inner_backend(manager.grammar_backend)
    if backend is None:
        return
    scheduler = manager.scheduler
    stops = scheduler.model_config.hf_eos_token_id or {scheduler.tokenizer.eos_token_id}
    proper = ProperTokens(scheduler.tokenizer, sorted(stops))
    backend.dispatch_fallback = proper.dispatch
    if get_context().config_leaf("prepare_proper_tokens"):
        threading.Thread(target=_prepare, args=(proper,), daemon=True).start()


def _prepare(proper: ProperTokens) -> None:
    """Do what the first request would wait for."""
    found = proper.dispatch(f"{PREFIX}regex", ANY_TEXT)
    if isinstance(found, InvalidGrammarObject):
        logger.warning("--prepare-proper-tokens: %s", found.error_message)


def inner_backend(backend: BaseGrammarBackend | None) -> BaseGrammarBackend | None:
    """The grammar backend behind one for thinking sections."""
    if isinstance(backend, ReasonerGrammarBackend):
        return backend.grammar_backend
    return backend


def grammar_key(key: tuple[str, str], req: Any, backend: BaseGrammarBackend) -> tuple[str, str]:
    """The key of a request's grammar in upstream's cache of grammars (upstream's hook).

    Args:
        key: upstream's, of kind and text.
        req: upstream's Req.
        backend: upstream's grammar backend.
    """
    kind, text = key
    if not req.sampling_params.proper_tokens:
        return key
    req.grammar_wait_ct = -PATIENCE
    kind = kind.partition(":")[0]
    if isinstance(backend, ReasonerGrammarBackend) and frames_answers(backend, kind):
        return FRAMED, text
    return PREFIX + kind, text


def walk_of(grammar: Any) -> ProperGrammar | None:
    """The walk that constrains the next token of a request; None if there is none."""
    if isinstance(grammar, ReasonerGrammarObject):
        grammar = grammar.grammar if applies_constraint(grammar) else None
    return grammar if isinstance(grammar, ProperGrammar) else None
