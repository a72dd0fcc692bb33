"""The limits of a constraint: time, memory, threads, and how long a scheduler waits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from tokenizers import Tokenizer

from bench.constraints.vocabularies import train
from ebnf import rules_json
from lz_penalty.fields.table import FieldError
from proper_tokens import compiler, prepared, row_finder, time_limits, warm_up
from proper_tokens import product as products
from proper_tokens.compiler import Compiler
from proper_tokens.kernels import masks
from proper_tokens.kernels.walk import step
from proper_tokens.language import language_of
from proper_tokens.product import START, Late, Product
from proper_tokens.row_finder import Spent
from proper_tokens.rules import ANY_TEXT, Rules
from proper_tokens.time_limits import A_TOKEN, GRACE, PATIENCE, Allowance, Stopwatch, WaitLimit
from proper_tokens.tokenizer import Unsupported
from sglang_lz.constraints import backend, ranks, request_field
from sglang_lz.constraints.backend import ProperTokens
from sglang_lz.constraints.grammar import ProperGrammar

PLENTY = 120.0
"""Seconds that a busy machine may take; nothing here waits for them."""


@cache
def tokenizer_json() -> str:
    return train("llama3", 600, iter(["so it was and so it is", "a b c 0 1 2"] * 50))


@cache
def tokenizer() -> prepared.Prepared:
    return prepared.Prepared(prepared.prepared_arrays(tokenizer_json()))


def product_of(text: str) -> Product:
    return Product(tokenizer(), language_of(Rules(rules_json(text))))


@pytest.fixture
def own() -> Iterator[Compiler]:
    one = Compiler()
    yield one
    one.stop()


@pytest.mark.slow
def test_a_compiled_language_is_the_same(own: Compiler) -> None:
    text = rules_json('root ::= (([a-z]* "\\u00e9" [0-9]{2, 3}))')
    here = language_of(Rules(text))
    for found, wanted in zip(own.language(text), here, strict=True):
        assert found.dtype == wanted.dtype
        assert (found == wanted).all()
    own.check(text)


DEEP_RULES = ["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(5000))]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (rules_json("\n".join([*DEEP_RULES, 'r5000 ::= "a"'])), "nested too deeply"),
        (rules_json("root ::= ((Token(3)))"), "rules hold"),
        ("{}", "must have __VERSION__ 'v16', got None"),
        (ANY_TEXT.replace('"root_rule_id": 0', '"root_rule_id": 7'), "cannot be read"),
    ],
    ids=["deep", "tokens", "another version", "broken"],
)
def test_constraints_that_cannot_be_compiled(own: Compiler, text: str, reason: str) -> None:
    for ask in (own.check, own.language):
        with pytest.raises(Unsupported, match=reason):
            ask(text)


@pytest.mark.parametrize("limit", ["SECONDS", "BYTES"])
def test_a_child_has_little_time_and_memory(limit: str) -> None:
    """Whatever the compiler does, its child ends, and the next one is served."""
    read, write = compiler.socket.socketpair()
    source = {
        "SECONDS": "while True: pass",
        "BYTES": "found = []\nwhile True: found.append(bytes(1 << 20))",
    }[limit]
    program = (
        "import socket, sys\nfrom proper_tokens import compiler\n"
        f"def work(text):\n{chr(10).join('    ' + line for line in source.splitlines())}\n"
        "compiler.Rules = work\ncompiler.SECONDS = 1\n"
        "compiler._work(socket.socket(fileno=int(sys.argv[1])))"
    )
    with write:
        child = compiler.subprocess.Popen(
            [compiler.sys.executable, "-c", program, str(write.fileno())], pass_fds=[write.fileno()]
        )
    with read:
        read.sendall(b"Croot")
        read.shutdown(compiler.socket.SHUT_WR)
        answer = compiler._all_of(read, time.monotonic() + PLENTY)
    child.wait(PLENTY)
    assert b"takes more than" in answer or (answer == b"" and child.returncode != 0)


@pytest.mark.slow
def test_no_search_has_to_compile_anything() -> None:
    """Numba takes seconds, which a scheduler would wait for."""
    script = Path(__file__).with_name("count_compilations.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        input=tokenizer_json(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_compiler_that_was_ended_starts_again(own: Compiler) -> None:
    own.check(ANY_TEXT)
    assert own._process is not None
    own._process.kill()
    own._process.wait()
    own.check(ANY_TEXT)


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(
        constrained_json_disable_any_whitespace=False, constrained_json_max_whitespace_cnt=None
    )
    monkeypatch.setattr("sglang.srt.runtime_context.get_serving", lambda: config)


@pytest.mark.usefixtures("serving")
def test_the_event_loop_goes_on_while_a_constraint_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is read once, and nothing but a sentence is kept of what was refused."""
    asked: list[str] = []
    may_go = threading.Event()

    def check(text: str) -> None:
        asked.append(text)
        assert may_go.wait(PLENTY)
        raise Unsupported("so it is")

    monkeypatch.setattr(compiler.COMPILER, "check", check)
    monkeypatch.setattr(request_field, "_CHECKED", request_field.OrderedDict())
    monkeypatch.setattr(request_field, "CHECKED", 2)

    async def both() -> None:
        task = asyncio.create_task(
            request_field.check_rules({"regex": "ab"}, {"proper_tokens": True})
        )
        while not asked:
            await asyncio.sleep(0.001)
        may_go.set()  # the loop got here while the check waited
        with pytest.raises(FieldError, match="with this regex, got true: so it is"):
            await task
        for text in ("ab", "cd", "ef", "gh"):
            with pytest.raises(FieldError):
                await request_field.check_rules({"regex": text}, {"proper_tokens": True})

    asyncio.run(both())
    assert len(asked) == 4
    assert list(request_field._CHECKED.values()) == ["so it is"] * 2


def test_patience_comes_back_with_time_and_tokens() -> None:
    now = [0.0]
    shared = Allowance(1.0, 0.5, lambda: now[0])
    one = WaitLimit(shared)
    assert not one.is_over(PATIENCE - 0.01, 0.99)
    assert one.is_over(PATIENCE, 0.0)
    one.waited(0.6, 0.9)
    assert one.is_over(PATIENCE - 0.6, 0.0)
    assert not one.is_over(PATIENCE - 0.61, 0.09)
    one.waited(0.5, 0.5)
    assert one.is_over(0.0, 0.0)
    one.got_to(10)
    assert one.is_over(0.0, 0.0)
    for _ in range(3):  # drafts that are rolled back earn nothing twice
        one.got_to(30)
    now[0] += 100
    assert shared.left() == 1.0
    left = PATIENCE - 0.6 - 0.5 + 30 * A_TOKEN
    assert one.is_over(left + 0.001, 0.0)
    assert not one.is_over(left - 0.001, 0.0)


def test_hard_searches_leave_time_for_easy_ones() -> None:
    now = [0.0]
    shared = Allowance(1.0, 0.5, lambda: now[0])
    easy, hard = WaitLimit(shared), WaitLimit(shared)
    hard.waited(0.2, 5.0)
    assert hard.is_over(GRACE, 0.0)
    for _ in range(100):  # it waits for the processor that others use
        assert not easy.is_over(GRACE / 2, 60.0)
        easy.waited(0.001, 1.0)
    now[0] += 300.0
    assert not hard.is_over(GRACE, 0.0)


def test_a_busy_machine_costs_a_request_little() -> None:
    """Only what the process itself worked counts, or a hundredth of the time."""
    now, used = [5.0], [70.0]
    watch = Stopwatch(lambda: now[0], lambda: used[0])
    assert watch.seconds() == 0
    now[0] += 0.3
    used[0] += 2.4  # several threads search
    assert watch.seconds() == pytest.approx(0.3)
    now[0] += 3.0
    assert watch.seconds() == pytest.approx(2.4)
    now[0] += 100.0
    assert watch.seconds() == pytest.approx(2.4)
    now[0] += 200.0
    assert watch.seconds() == pytest.approx(3.033)


class _Slowly(Product):
    """A product whose searches take longer than a scheduler waits, without using a processor."""

    def _rows_of(self, text: int, nfc: int, steps: int, is_warming: bool = False) -> Any:
        time.sleep(0.3)
        return super()._rows_of(text, nfc, steps, is_warming)


@pytest.mark.slow
def test_a_search_that_gets_no_processor_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    product_of("root ::= (([a-z]*))").mask(START)  # numba compiles what it needs
    product = _Slowly(tokenizer(), language_of(Rules(rules_json("root ::= (([a-z]*))"))))
    monkeypatch.setattr(time_limits, "PATIENCE", 0.25)
    monkeypatch.setattr(time_limits, "GRACE", 0.25)
    spent = Allowance(0.0, 0.0)
    assert product.mask(START, WaitLimit(spent)).any()


class _Stuck(Product):
    """A product whose searches wait for an event."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.may_go = threading.Event()

    def _rows_of(self, text: int, nfc: int, steps: int, is_warming: bool = False) -> Any:
        assert self.may_go.wait(PLENTY)
        return super()._rows_of(text, nfc, steps, is_warming)


def wait_until(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + PLENTY
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.001)


def paused_walk(product: Product) -> tuple[ProperGrammar, torch.Tensor]:
    """A walk whose first mask is late, and that mask."""
    walk = ProperGrammar(product, [0], Allowance(1.0, 0.5))
    walk.may_pause = True
    mask = ProperGrammar.allocate_vocab_mask(600, 1, "cpu")
    walk.fill_vocab_mask(mask, 0)
    assert mask.count_nonzero() == 1
    assert walk.is_late
    return walk, mask


def test_a_walk_pauses_twice_at_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """After that, the scheduler waits for it as for a request that cannot pause."""
    monkeypatch.setattr(time_limits, "PATIENCE", 0.01)
    product = _Stuck(tokenizer(), language_of(Rules(rules_json("root ::= (([a-z]*))"))))
    walk, mask = paused_walk(product)
    for length in (3, 3):
        assert walk.is_late
        walk.pause(length)
        walk.resume()
        walk.went_on(length)
        walk.fill_vocab_mask(mask, 0)
    assert not walk.is_late
    walk.accept_token(product.impossible(START))
    assert walk.failure is not None
    walk.rollback(1)
    walk.went_on(4)
    walk.fill_vocab_mask(mask, 0)
    assert walk.is_late
    product.may_go.set()


def test_ranks_give_up_and_draft_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask or draft that another rank does not have counts as missing here too."""
    product = product_of('root ::= (("abababab"))')
    walk = ProperGrammar(product, [0])
    assert len(walk.forced_run(4)) > 1
    asked = []

    def all_reduce(least: torch.Tensor, operation: Any, group: str) -> None:
        assert operation == torch.distributed.ReduceOp.MIN
        asked.append(int(least))
        least.fill_(min(int(least), others))

    monkeypatch.setattr(ranks, "GROUPS", ["group"])
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    mask = ProperGrammar.allocate_vocab_mask(600, 1, "cpu")
    others = 1
    assert len(walk.forced_run(4)) == 1
    others = 2  # it has its mask
    walk.fill_vocab_mask(mask, 0)
    wanted = product.mask(START).view(np.int32)
    assert (mask[0, : len(wanted)].numpy() == wanted).all()
    others = 0
    walk.fill_vocab_mask(mask, 0)
    token = product.impossible(START)
    assert mask.numpy().view(np.uint32)[0, token >> 5] == 1 << (token & 31)
    assert mask.count_nonzero() == 1
    assert walk.forced_run(4) == []
    assert asked[1:3] == [2, 2]


def test_a_search_that_takes_long_makes_way_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "SLICE", 0)
    product = product_of('root ::= (([a-z ]{0, 300} "q" [0-9]))')
    assert product.mask(START).any()
    assert product._slow is not None  # it went on there
    monkeypatch.setattr(products, "STEPS", 0)
    with pytest.raises(Spent):
        product_of('root ::= (([a-z ]{0, 300} "q" [0-9]))').mask(START)
    monkeypatch.setattr(time_limits, "PATIENCE", 0.01)
    stuck = _Stuck(tokenizer(), language_of(Rules(rules_json("root ::= (([a-z]*))"))))
    with pytest.raises(Late):
        stuck.mask(START, WaitLimit(Allowance(1.0, 0.5)))


def test_a_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_finder, "MOST_ENTRIES", 1 << 12)
    product = product_of('root ::= (([a-z \\n]{0, 300} "q" [0-9]))')
    state, seen = START, 0
    while seen < 60 and (bits := product.mask(state)).any():
        token = int(bits.nonzero()[0][0]) * 32
        word = int(bits[token // 32])
        after = product.next(state, token + (word & -word).bit_length() - 1)
        assert after is not None
        state, seen = after, seen + 1
    assert len(product._finder.memo.packed) <= 1 << 12


def test_searches_end_with_their_last_user() -> None:
    product = product_of("root ::= (([a-z ]{0, 300}))")
    first, second = ProperGrammar(product, [0]), ProperGrammar(product, [0])
    first.finished = True
    assert product.is_used
    del second
    assert not product.is_used
    with pytest.raises(Spent):  # the search was told to stop
        product.mask(START)
    third = ProperGrammar(product, [0])
    assert product.mask(START).any()
    third.finished = True
    third.finished = True
    assert not product.is_used


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, serving: None) -> ProperTokens:
    monkeypatch.setattr(compiler.COMPILER, "language", lambda text: language_of(Rules(text)))
    monkeypatch.setattr(backend, "prepare_in_own_process", lambda text: tokenizer())
    proper = ProperTokens(
        SimpleNamespace(backend_tokenizer=Tokenizer.from_str(tokenizer_json())), [0]
    )
    return proper


@pytest.mark.slow
def test_all_constraints_together_are_bounded(
    served: ProperTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = served.dispatch("proper_regex", "a{3}")
    size = one._product.all_bytes
    one.finished = True
    monkeypatch.setattr(backend, "BYTES", 4 * size)
    monkeypatch.setattr(backend, "MOST_BYTES", 8 * size)
    monkeypatch.setattr(backend, "ROW_BYTES", 1000)
    for i in range(30):
        served.dispatch("proper_regex", f"[a-z]{{{i}}}b").finished = True
    assert len(served._products) <= 5
    walks = [served.dispatch("proper_regex", f"[a-z]{{{i}}}c") for i in range(30)]
    refused = [walk for walk in walks if isinstance(walk, InvalidGrammarObject)]
    assert len(refused) > 20
    assert "leave it no memory" in refused[0].error_message
    assert len(served._products) < 10
    for walk in walks:
        walk.finished = True
    served._timer.cancel()
    served._timer = None
    served._tidy()  # what was in use does not stay
    assert sum(product.all_bytes for product in served._kept().values()) <= 4 * size
    served._timer.cancel()


def test_refused_constraints_are_not_kept(served: ProperTokens) -> None:
    found = served.dispatch("proper_regex", "(a")
    assert isinstance(found, InvalidGrammarObject)
    assert not served._products


@pytest.mark.slow
def test_a_tokenizer_is_prepared_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It compiles the kernels, too. If it fails, the tokenizer is prepared here."""
    wanted = prepared.prepared_arrays(tokenizer_json())
    given = []
    monkeypatch.setattr(warm_up, "Prepared", lambda arrays: given.append(arrays) or "apart")
    monkeypatch.setattr(warm_up, "prepare", lambda text: "here")
    assert warm_up.prepare_in_own_process(tokenizer_json()) == "apart"
    assert given[0].keys() == wanted.keys()
    for name, array in wanted.items():
        assert given[0][name].dtype == array.dtype, name
        np.testing.assert_array_equal(given[0][name], array, name)
    for kernel in (masks.live_plain, masks.states_behind, masks.combine, step):
        assert kernel._cache._cache_file._load_index()
    assert not caplog.records
    monkeypatch.setattr(warm_up.sys, "executable", "/bin/false")
    assert warm_up.prepare_in_own_process(tokenizer_json()) == "here"
    assert "could not be prepared apart" in caplog.text


def test_a_tokenizer_that_is_refused_is_refused_here(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unsupported, match="not BPE"):
        warm_up.prepare_in_own_process('{"model": {"type": "Unigram"}}')
    assert not caplog.records, "the process failed"


def test_a_refused_tokenizer_is_not_prepared_again(
    served: ProperTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(text: str) -> None:
        asked.append(text)
        raise Unsupported("its model is none")

    monkeypatch.setattr(backend, "prepare_in_own_process", refuse)
    for _ in range(3):
        found = served.dispatch("proper_regex", "a")
        assert "its model is none" in found.error_message
    assert len(asked) == 1


def test_upstream_keeps_no_grammar_of_ours() -> None:
    from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend

    own = BaseGrammarBackend()
    gate = threading.Event()

    def dispatch(kind: str, text: str) -> Any:
        if text == "slow":
            assert gate.wait(PLENTY)
        return InvalidGrammarObject(text)

    own.dispatch_fallback = dispatch
    proper = ProperTokens(None, [0])
    backend._keep_apart(SimpleNamespace(grammar_backend=own, pp_size=1), proper)
    slow = [own.get_cached_or_future_value(("proper_regex", "slow"), False)[0] for _ in range(20)]
    found, is_kept = own.get_cached_or_future_value(("proper_regex", "x"), False)
    assert not is_kept
    assert found.result(PLENTY).error_message == "x"
    own.set_cache(("proper_regex", "x"), found.result())
    own.set_cache(("regex", "x"), found.result())
    assert list(own.cache) == [("regex", "x")]
    gate.set()
    ready: Any = backend.Future()
    ready.set_result(SimpleNamespace(is_worn=False))
    proper._products["regex", "ready"] = ready
    found, is_kept = own.get_cached_or_future_value(("proper_regex", "ready"), False)
    assert is_kept
    assert found.error_message == "ready"
    for future in slow:
        future.result(PLENTY)


class _Stages:
    """The schedulers of a pipeline, as far as they agree on grammars.

    Args:
        outcomes: what each stage compiles: a grammar, or an InvalidGrammarObject.
    """

    def __init__(self, outcomes: Sequence[Any]) -> None:
        from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend

        self.sent: list[Any] = []
        self.backends = []
        for rank, outcome in enumerate(outcomes):
            own = BaseGrammarBackend()
            own.dispatch_fallback = lambda kind, text, outcome=outcome: outcome
            group = SimpleNamespace(
                send_object=lambda found, **_: self.sent.append(found) or [],
                recv_object=lambda **_: self.sent.pop(0),
            )
            proper = ProperTokens(None, [0])
            proper.prepared = tokenizer  # type: ignore[method-assign]
            ready: Any = backend.Future()
            ready.set_result(SimpleNamespace(is_worn=False))
            if rank == 0:  # a later stage has forgotten what the first one has
                proper._products["regex", "x"] = ready
            manager = SimpleNamespace(
                grammar_backend=own,
                pp_size=len(outcomes),
                pp_rank=rank,
                pp_group=group,
                grammar_pp_sync_work_list=[],
            )
            backend._keep_apart(manager, proper)
            self.backends.append(own)

    def grammars(self) -> list[Any]:
        found = []
        for own in self.backends:
            future, is_kept = own.get_cached_or_future_value(("proper_regex", "x"), False)
            assert not is_kept  # else the stages' queues would differ
            found.append(future.result(PLENTY))
        return found


def test_the_first_stage_of_a_pipeline_decides() -> None:
    """A later stage may run out of time where the first one did not, and vice versa."""
    right = ProperGrammar(product_of('root ::= (("abababab"))'), [0])
    wrong = InvalidGrammarObject("late")
    assert _Stages([right, right, right]).grammars() == [right] * 3
    for refused in _Stages([wrong, right, right]).grammars():
        assert refused.error_message == "late"
    first, second, third = _Stages([right, wrong, right]).grammars()
    assert (first, third) == (right, right)
    for token in (*right.forced_run(9), 0):  # it accepts all that the last stage samples
        assert not second.is_terminated()
        for grammar in (second, third):
            grammar.accept_token(token)
    assert second.is_terminated()
    assert third.is_terminated()


def test_a_stage_without_a_product_ends_its_request_at_the_first_token() -> None:
    right, wrong = ProperGrammar(product_of('root ::= "a"'), [0]), InvalidGrammarObject("late")
    first, last = _Stages([right, wrong]).grammars()
    mask = last.allocate_vocab_mask(600, 1, "cpu")
    last.fill_vocab_mask(mask, 0)
    row = mask.numpy().view("uint8")[0]
    (token,) = np.flatnonzero(np.unpackbits(row, bitorder="little")).tolist()
    for grammar in (first, last):
        grammar.accept_token(token)
        assert grammar.is_terminated()
        assert grammar.failure is not None
    assert last.failure.endswith("given up here: late")
