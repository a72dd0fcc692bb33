"""Proper tokens as a backend of SGLang's grammars: it makes, caches and frees the constraints."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import torch
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    InvalidGrammarObject,
)
from sglang.srt.constrained.reasoner_grammar_backend import (
    ReasonerGrammarBackend,
    ReasonerGrammarObject,
)

from proper_tokens.compiler import COMPILER
from proper_tokens.language import language_of
from proper_tokens.prepared import Prepared
from proper_tokens.product import START, Product
from proper_tokens.rules import ANY_TEXT as ANY_RULES
from proper_tokens.rules import Rules
from proper_tokens.time_limits import MASKS, Allowance
from proper_tokens.tokenizer import Unsupported
from proper_tokens.warm_up import compile_all, prepare_in_own_process
from sglang_lz.constraints import grammar_cache, ranks
from sglang_lz.constraints.dead_ends import is_pipeline
from sglang_lz.constraints.end_tokens import model_end_tokens
from sglang_lz.constraints.grammar import ProperGrammar
from sglang_lz.constraints.rules import ANY_TEXT, rules_of

logger = logging.getLogger(__name__)

PREFIX = "proper_"
"""The prefix that marks one of upstream's grammar kinds as one with proper tokens."""
FRAMED = f"{PREFIX}framed"
PRODUCTS = 64
"""How many constraints are cached; unused ones above this number are dropped."""
BYTES = 128 << 20
"""How much memory constraints may take; unused ones above this size are dropped."""
MOST_BYTES = 1 << 30
"""The most memory for all constraints, including those in use."""
TIDY = 30.0
"""Seconds between checks of the cached constraints, while they take much memory."""
BUILDERS = 128
"""How many constraints are compiled or waited for at the same time."""
ROW_BYTES = 1 << 20
"""The least memory for the rows of one constraint."""
PATIENCE = 100_000
"""How many more times, at least 5 ms apart, upstream polls for a grammar before it gives up. The
first grammar has to wait for the tokenizer to be prepared and, if nothing has been compiled yet,
for numba."""


class ProperTokens:
    """Everything a scheduler needs to serve proper tokens with its tokenizer.

    Args:
        tokenizer: the model's tokenizer, a fast tokenizer of Hugging Face.
        stop_tokens: the tokens that end an output.
        shared: as in `ProperGrammar`.
    """

    def __init__(
        self, tokenizer: Any, stop_tokens: Sequence[int], shared: Allowance | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_tokens = tuple(stop_tokens)
        self._shared = shared
        self._prepared: Prepared | None = None
        self._refusal = ""  # why the tokenizer cannot be modelled
        self._products: OrderedDict[tuple[str, str], Future[Product]] = OrderedDict()
        self._timer: threading.Timer | None = None
        self._preparing = threading.Lock()
        self._building = threading.Lock()
        self._lock = threading.Lock()

    def prepared(self) -> Prepared:
        """The tokenizer's automata; the first call builds them.

        Raises:
            Unsupported: the tokenizer cannot be modelled exactly.
        """
        with self._preparing:
            if self._refusal:
                raise Unsupported(self._refusal)
            if self._prepared is None:
                start = time.perf_counter()
                try:
                    found = prepare_in_own_process(tokenizer_text(self._tokenizer))
                except Unsupported as error:
                    self._refusal = str(error)
                    raise
                compile_all(found)
                self._prepared = found
                logger.info("Proper tokens ready in %.1f s", time.perf_counter() - start)
            return self._prepared

    def dispatch(self, kind: str, text: str) -> BaseGrammarObject:
        """The grammar of a constraint of one of our kinds (upstream's `dispatch_fallback`)."""
        try:
            if kind == FRAMED:
                raise Unsupported("this model frames its answers in tokens that are no text")
            return self._grammar(kind.removeprefix(PREFIX), text)
        except Unsupported as error:
            return InvalidGrammarObject(f"proper_tokens cannot be exact: {error}")

    def _grammar(self, kind: str, text: str) -> ProperGrammar:
        key = (kind, text)
        with self._lock:
            future = self._products.get(key)
            if future is not None and _is_worn(future):
                # Those that use it keep it, and it still counts.
                self._products[f"{kind} {id(future)}", text] = self._products.pop(key)
                future = None
            is_first = future is None
            if future is None:
                future = self._products[key] = Future()
            self._products.move_to_end(key)
        if is_first:
            self._build(key, future)
        product = future.result()
        try:
            return ProperGrammar(product, self._stop_tokens, self._shared)
        finally:
            if is_first:
                product.end()

    def unmade(self, problem: str) -> ProperGrammar:
        """The grammar of a constraint that this stage of a pipeline could not make in time.

        The first stage has admitted the request, so all stages must run it. The last one has no
        mask for its first token, and samples a token that ends the request on all stages. Others
        accept what the last one samples.
        """
        anything = Product(self.prepared(), language_of(Rules(ANY_RULES)))
        walk = ProperGrammar(anything, self._stop_tokens, self._shared)
        walk.hopeless[START] = problem
        return walk

    def is_ready(self, kind: str, text: str) -> bool:
        """Whether the constraint is compiled already, so that `dispatch` returns quickly."""
        with self._lock:
            future = self._products.get((kind.removeprefix(PREFIX), text))
        return future is not None and future.done() and not _is_worn(future)

    def _build(self, key: tuple[str, str], future: Future[Product]) -> None:
        """Build the product of a constraint for everyone waiting for it."""
        try:
            prepared, language = self.prepared(), COMPILER.language(rules_of(*key))
            # This takes about 25 ms of Python. If several ran at once, the scheduler's thread would
            # wait for the GIL behind each of them.
            with self._building:
                product = Product(prepared, language)
            product.begin()  # until the walk of the request that builds it has begun
            if not product.can_end():
                raise Unsupported("it allows no text that the tokenizer would spell")
            self._make_room(product)
        except BaseException as error:
            with self._lock:
                self._products.pop(key, None)
            future.set_exception(error)
            return
        future.set_result(product)
        product.warm_in_background()

    def _make_room(self, new: Product) -> None:
        """Drop unused products so that all products stay within the memory limit.

        Raises:
            Unsupported: the products in use leave no room.
        """
        with self._lock:
            if self._forget(new.all_bytes) > MOST_BYTES:
                raise Unsupported("the constraints of other requests leave it no memory now")
            rows = max(ROW_BYTES, BYTES // 2 // len(self._products))
            for product in (new, *self._kept().values()):
                product.most_bytes = rows
        self._tidy()

    def _kept(self) -> dict[tuple[str, str], Product]:
        """The finished products, the least recently used first. The caller holds `_lock`."""
        return {key: future.result() for key, future in self._products.items() if future.done()}

    def _forget(self, others: int) -> int:
        """Drop unused products until all fit. The caller holds `_lock`.

        Args:
            others: the size in bytes of what must fit besides them.

        Returns:
            The total size in bytes.
        """
        kept = self._kept()
        total = others + sum(product.all_bytes for product in kept.values())
        for key, product in kept.items():
            if total <= BYTES and len(self._products) <= PRODUCTS:
                break
            if not product.is_used:
                total -= product.all_bytes
                del self._products[key]
        return total

    def _tidy(self) -> None:
        """Drop products that are too large, later if they are still in use."""
        with self._lock:
            if self._timer not in (None, threading.current_thread()):
                return  # the pending timer will do it
            self._timer = None
            if self._forget(0) > BYTES // 2:
                self._timer = threading.Timer(TIDY, self._tidy)
                self._timer.daemon = True
                self._timer.start()


def _is_worn(future: Future[Product]) -> bool:
    """Whether a product is finished and has little room left (`Product.is_worn`)."""
    return future.done() and future.exception() is None and future.result().is_worn


def tokenizer_text(tokenizer: Any) -> str:
    """The `tokenizer.json` of a tokenizer.

    Raises:
        Unsupported: it has none.
    """
    to_str = getattr(getattr(tokenizer, "backend_tokenizer", None), "to_str", None)
    if to_str is None:
        raise Unsupported(f"the tokenizer {type(tokenizer).__name__} has no tokenizer.json")
    return str(to_str())


def serve_proper_tokens(manager: Any) -> None:
    """Make a scheduler serve proper tokens (upstream's hook).

    Args:
        manager: upstream's GrammarManager, with its backend.
    """
    from sglang.srt.runtime_context import get_context

    backend = manager.grammar_backend
    if isinstance(backend, ReasonerGrammarBackend):
        backend = backend.grammar_backend
    if backend is None:
        return
    grammar_cache.bound(manager.grammar_backend, backend, is_pipeline())
    scheduler = manager.scheduler
    stops = model_end_tokens(scheduler.model_config, scheduler.tokenizer)
    proper = ProperTokens(scheduler.tokenizer, sorted(stops), MASKS)
    backend.dispatch_fallback = proper.dispatch
    ranks.join(scheduler)
    _keep_apart(manager, proper)
    if get_context().config_leaf("prepare_proper_tokens"):
        threading.Thread(target=_prepare, args=(proper,), daemon=True).start()


class _Agreed(Future[Any]):
    """A grammar that a scheduler waits for; if it fails on one rank, it fails on all.

    One rank may run out of time or memory where another does not. Upstream requests the results in
    the same order on all ranks. In a pipeline the first stage decides and tells the later ones.

    Args:
        manager: upstream's GrammarManager.
        proper: makes the grammars.
    """

    def __init__(self, manager: Any, proper: ProperTokens) -> None:
        super().__init__()
        self._manager, self._proper = manager, proper

    def result(self, timeout: float | None = None) -> Any:
        found = super().result(timeout)
        mine = found.error_message if isinstance(found, InvalidGrammarObject) else None
        problems: list[Any] = [mine]
        for group in ranks.GROUPS:
            problems = [None] * torch.distributed.get_world_size(group)
            torch.distributed.all_gather_object(problems, mine, group=group)
        problem = next(filter(None, problems), None)
        first = _of_first_stage(self._manager, problem)
        if first is not None:
            return InvalidGrammarObject(first)
        return found if problem is None else self._proper.unmade(problem)


def _of_first_stage(manager: Any, problem: str | None) -> str | None:
    """The problem that the first stage of a pipeline has; every stage passes it on to the next.

    The messages follow those of upstream that say which grammars are ready.
    """
    if manager.pp_size == 1:
        return problem
    from sglang.srt.distributed.communication_tags import P2PTag

    tag = P2PTag.GRAMMAR_PP_SYNC
    if manager.pp_rank > 0:
        problem = manager.pp_group.recv_object(src=manager.pp_rank - 1, tag=tag)
    if manager.pp_rank + 1 < manager.pp_size:
        sent = manager.pp_group.send_object(
            problem, dst=manager.pp_rank + 1, async_send=True, tag=tag
        )
        manager.grammar_pp_sync_work_list.extend(sent)
    return problem


def _keep_apart(manager: Any, proper: ProperTokens) -> None:
    """Keep our grammars out of the cache and the thread pool of upstream's backend.

    Upstream's cache is small, and its pool has few threads.
    """
    backend = manager.grammar_backend
    look, keep = backend.get_cached_or_future_value, backend.set_cache
    threads = ThreadPoolExecutor(BUILDERS, thread_name_prefix="proper-build")

    def get_cached_or_future_value(key: tuple[str, str], require_reasoning: bool) -> Any:
        if not key[0].startswith(PREFIX):
            return look(key, require_reasoning)
        is_one_rank = not ranks.GROUPS and manager.pp_size == 1  # other ranks might not be ready
        if is_one_rank and proper.is_ready(*key):
            return backend._init_value_dispatch(key, require_reasoning), True
        agreed = _Agreed(manager, proper)

        def build() -> None:
            if not agreed.set_running_or_notify_cancel():
                return  # the request was aborted
            try:
                agreed.set_result(backend._init_value_dispatch(key, require_reasoning))
            except Exception as error:
                logger.exception("Proper tokens: a constraint cannot be compiled")
                agreed.set_result(InvalidGrammarObject(f"proper_tokens failed: {error!r}"))

        threads.submit(build)
        return agreed, False

    def set_cache(key: tuple[str, str], value: BaseGrammarObject) -> None:
        if not key[0].startswith(PREFIX):
            keep(key, value)

    backend.get_cached_or_future_value = get_cached_or_future_value
    backend.set_cache = set_cache


def end_without_mask(req: Any, new_tokens: int) -> None:
    """End a request whose mask was not found in time, and that could not pause (upstream's hook).

    Args:
        req: upstream's Req, with its new tokens.
        new_tokens: the number of tokens from this step; they are discarded.
    """
    grammar = req.grammar
    if isinstance(grammar, ReasonerGrammarObject):
        grammar = grammar.grammar
    if not isinstance(grammar, ProperGrammar):
        return
    grammar.went_on(len(req.output_ids))
    if grammar.failure is None or req.to_finish is not None:
        return
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    req.to_finish = FINISH_ABORT(grammar.failure, HTTPStatus.BAD_REQUEST, "BadRequestError")
    req.finished_len = max(0, len(req.output_ids) - new_tokens)


def _prepare(proper: ProperTokens) -> None:
    """Prepare everything that the first request would otherwise have to wait for."""
    found = proper.dispatch(f"{PREFIX}regex", ANY_TEXT)
    if isinstance(found, InvalidGrammarObject):
        logger.warning("--prepare-proper-tokens: %s", found.error_message)


def grammar_key(key: tuple[str, str], req: Any, backend: BaseGrammarBackend) -> tuple[str, str]:
    """The key of a request's grammar in upstream's cache of grammars (upstream's hook).

    Args:
        key: upstream's key, of kind and text.
        req: upstream's Req.
        backend: upstream's grammar backend.
    """
    kind, text = key
    if not req.sampling_params.proper_tokens:
        return key
    req.grammar_wait_ct = -PATIENCE
    kind = kind.partition(":")[0]
    if isinstance(backend, ReasonerGrammarBackend) and backend._is_framed(kind):
        return FRAMED, text
    return PREFIX + kind, text
