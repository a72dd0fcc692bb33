"""The penalizer against the oracle, under any order of events that upstream's scheduler allows."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch.utils._python_dispatch import TorchDispatchMode

from device import DEVICE
from lz_penalty import kernels, penalizer
from lz_penalty.breakers import Vocabulary, tables_of
from lz_penalty.draft_tree import AcceptedPaths, DraftTrees
from lz_penalty.fields.histories import FIELDS, UPSTREAM, HistoryParams
from lz_penalty.fields.lz import LZParams
from lz_penalty.history import HistoryRoom
from lz_penalty.reference import steps as reference
from lz_penalty.window import StepInputs, WindowState, bytes_of_row
from oracle import COSTS, Penalties, delta_bits, has_memory, penalised, visible_history
from sglang_lz.scheduler import history_room, sampling
from sglang_lz.scheduler.request_rows import has_history
from trees import Tree

VOCAB = 5
MAX_WINDOW = 16
ROWS = 5
TOLERANCE = 1e-4
WORDS = (b"a", b"b", b"ab", b"c", b"bca")
"""The text of each token."""
NUMBERS = frozenset({3, 4})
EOS = 4
MOST_NODES = 7
ROOM = HistoryRoom(VOCAB, words=2**20, nodes=MOST_NODES, logits=ROWS * MOST_NODES)


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_max_window_size", lambda: MAX_WINDOW)
    monkeypatch.setattr(sampling, "_is_decode_server", lambda: False)
    monkeypatch.setattr(sampling, "_tree_sizes", lambda: {3})
    monkeypatch.setattr(sampling, "_most_nodes", lambda: MOST_NODES)
    monkeypatch.setattr(history_room, "memory", lambda: 4)
    is_number = np.isin(range(VOCAB), [*NUMBERS])
    monkeypatch.setattr(history_room, "number_tokens", lambda tokenizer, size: is_number)
    monkeypatch.setattr(sampling.guard, "prepare", lambda: None)
    monkeypatch.setattr(sampling, "unsupported_modes", lambda config: iter(()))
    monkeypatch.setattr(
        "lz_penalty.breakers.tables_for",
        lambda _, size, breakers: tables_of(breakers, Vocabulary(WORDS), encode, size),
    )


def encode(text: str) -> list[int]:
    """The tokens of a text, the first that fits each time."""
    tokens = []
    while text:
        token = next(i for i, word in enumerate(WORDS) if text.encode().startswith(word))
        tokens.append(token)
        text = text[len(WORDS[token]) :]
    return tokens


def sequences(breakers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The token sequences that hold a breaker: one token, or one that begins it and the rest."""
    found = []
    for breaker in breakers:
        for token, word in enumerate(WORDS):
            if breaker.encode() in word:
                found.append((token,))
                continue
            for size in range(1, len(breaker)):
                if word.endswith(breaker[:size].encode()):
                    found.append((token, *encode(breaker[size:])))
    return tuple(found)


@pytest.fixture
def decode_server(monkeypatch: pytest.MonkeyPatch, server: None) -> None:
    monkeypatch.setattr(sampling, "_is_decode_server", lambda: True)


class Mode:
    """As much of upstream's ForwardMode as the penalizer asks for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_decode(self) -> bool:
        return self.name == "decode"

    def is_mixed(self) -> bool:
        return self.name == "mixed"

    def is_extend_without_speculative(self) -> bool:
        return self.name in ("extend", "mixed")


class Pool:
    """As much of upstream's ReqToTokenPool: row 0 is padding, rows are reused, newest first."""

    def __init__(self) -> None:
        self.req_to_token = torch.zeros(ROWS + 1, 1)
        self.req_generation = torch.zeros(ROWS + 1, dtype=torch.int64)
        self.free_slots = list(range(1, ROWS + 1))
        self._batch: list[tuple[int, int, int]] = []
        self._rows = torch.empty(0, dtype=torch.int64)

    def rows_of(self, reqs: Sequence[Request]) -> torch.Tensor:
        """The rows of a batch, in the same tensor until the batch changes. A request that left and
        came back may have its old row again."""
        batch = [(id(req), req.row, int(self.req_generation[req.row])) for req in reqs]
        if batch != self._batch:
            self._batch, self._rows = batch, torch.tensor([req.row for req in reqs])
        return self._rows

    def alloc(self) -> int:
        row = self.free_slots.pop()
        self.req_generation[row] += 1
        return row


@dataclass(eq=False)
class Request:
    sampling_params: SimpleNamespace
    origin_input_ids: array[int]
    eos_token_ids: tuple[int, ...] = (EOS,)
    tokenizer: None = None
    output_ids: array[int] = field(default_factory=lambda: array("q"))
    flying: list[int] = field(default_factory=list)
    period: int | None = None
    """It goes round in a loop of so many tokens."""
    counts: bool = False
    """Its loop has another number each time."""
    row: int | None = None
    extend_end: int = 0
    to_finish: object = None
    is_finished: bool = False
    rid: str = "r"
    custom_logit_processor: str | None = None
    grammar: None = None

    @property
    def kv(self) -> SimpleNamespace:
        return SimpleNamespace(holds_kv=self.row is not None, req_pool_idx=self.row)

    def finished(self) -> bool:
        return self.is_finished

    def set_finish_with_abort(self, message: str) -> None:
        self.to_finish = message

    @property
    def known(self) -> list[int]:
        """All tokens, those that the device has and the host has not read yet included."""
        return [*self.origin_input_ids, *self.output_ids, *self.flying]

    @property
    def full_untruncated_fill_ids(self) -> array[int]:
        return self.origin_input_ids + self.output_ids

    def sample(self, scores: torch.Tensor) -> int:
        """The next token: what goes on with its loop, or the one of the best score."""
        best = int(scores.argmax())
        return self.continuation(self.known, best) if self.period else best

    def continuation(self, text: Sequence[int], other: int) -> int:
        """What goes on with its loop after a text, or another token before there is one."""
        if self.period > len(text):
            return other
        if not self.counts:
            return text[-self.period] % VOCAB
        words = VOCAB - len(NUMBERS)
        is_number = len(text) % self.period == 0
        return words + other % len(NUMBERS) if is_number else text[-self.period] % words

    def land(self) -> None:
        """Read the sampled tokens, one step late as the overlap scheduler does."""
        self.output_ids.extend(self.flying)
        self.flying = []


def request(prompt: list[int], max_new_tokens: int = 1024, **given: object) -> Request:
    lz = {name: value for name, value in given.items() if name.startswith("lz_")}
    fields = {
        "lz_penalty": 0.5,
        "lz_window_size": 8,
        "lz_buffer_size": 4,
        "lz_include_prompt": True,
        "lz_cost": "marginal",
        "lz_onset": 0,
    }
    lz_params = LZParams.parse(fields | lz, MAX_WINDOW)
    others = {name: given.get(name, value) for name, value in vars(Penalties()).items()}
    params = SimpleNamespace(
        lz_params=lz_params if lz_params.penalty else None,
        history_params=HistoryParams.parse({k: v for k, v in given.items() if k in FIELDS}),
        max_new_tokens=max_new_tokens,
        stop_token_ids=set(others["stops"]),
        **{name: others[name] for name in UPSTREAM},
    )
    return Request(params, array("q", prompt))


def penalties_of(req: Request) -> Penalties:
    params = req.sampling_params
    own = params.history_params.request_fields()
    breakers = own.pop("dry_sequence_breakers")
    return Penalties(
        **own,
        **{name: getattr(params, name) for name in UPSTREAM},
        stops=(*params.stop_token_ids, EOS),
        breakers=sequences(breakers),
    )


RUNNER = SimpleNamespace(
    is_draft_worker=False,
    is_generation=True,
    device="cpu",
    pp_group=SimpleNamespace(is_last_rank=True),
    model_config=SimpleNamespace(vocab_size=VOCAB, context_len=4096),
)
"""Upstream's model runner; its device is that of the batches, too."""


def reserved_pool(**kind: object) -> Pool:
    """A pool as a server has it when it has started."""
    pool = Pool()
    runner = SimpleNamespace(**vars(RUNNER) | kind, req_to_token_pool=pool)
    sampling.reserve_windows(runner)
    return pool


def run_kernels_of_a_gpu(cuda_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them on DEVICE, with the scratch that they need."""
    room_for = history_room.room_for
    monkeypatch.setattr(kernels, "import_for", lambda device: cuda_kernels)
    monkeypatch.setattr(RUNNER, "device", DEVICE)
    monkeypatch.setattr(
        history_room,
        "room_for",
        lambda runner, rows, nodes: room_for(
            SimpleNamespace(device="cuda", model_config=runner.model_config), rows, nodes
        ),
    )


def batch_tensor(values: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(RUNNER.device)


def plan(pool: Pool, mode: str, prefills: list[Request], decodes: list[Request]) -> SimpleNamespace:
    """Run the planning hook on one batch; returns the forward batch."""
    reqs = [*prefills, *decodes]
    rows = pool.rows_of(reqs)
    # Prefills bring their uncached suffix (here its last one or two tokens), decodes one token.
    suffixes = [list(req.full_untruncated_fill_ids[: req.extend_end][-2:]) for req in prefills]
    suffixes += [[req.known[-1]] for req in decodes]
    lengths = [req.extend_end for req in prefills] + [len(req.known) for req in decodes]
    batch = SimpleNamespace(
        forward_mode=Mode(mode),
        reqs=reqs,
        model_config=RUNNER.model_config,
        req_pool_indices_cpu=rows,
        req_to_token_pool=pool,
        extend_num_tokens=sum(map(len, suffixes)),
        mix_running_indices_cpu=rows[len(prefills) :] if mode == "mixed" else None,
        decoding_reqs=(decodes or None) if mode != "decode" else None,
        seq_lens_cpu=torch.tensor(lengths),
    )
    forward_batch = SimpleNamespace(
        sampling_info=SimpleNamespace(grammars=None),
        req_pool_indices=rows.to(RUNNER.device),
        seq_lens=batch_tensor(lengths),
        # Padding after the real tokens, as data-parallel attention leaves it.
        input_ids=batch_tensor([token for suffix in suffixes for token in suffix] + [0, 0]),
    )
    sampling.plan_step(batch, RUNNER, forward_batch)
    return forward_batch


def forward(
    pool: Pool, mode: str, prefills: list[Request], decodes: list[Request], *, masks: bool = False
) -> tuple[penalizer.StepPlan | None, torch.Tensor, torch.Tensor]:
    """Run the hooks on one batch; returns the plan, the logits before and those after. A grammar
    may mask both, if it `masks`."""
    forward_batch = plan(pool, mode, prefills, decodes)
    before = torch.randn(len(prefills) + len(decodes), VOCAB)
    masked = random_mask(random, len(before)) if masks else None
    after = before.to(RUNNER.device, copy=True)
    forward_batch.sampling_info.grammars = None if masked is None else [object()]
    sampling.apply_step(after, forward_batch)
    if masked is not None:
        before[masked] = -math.inf
        after[masked.to(RUNNER.device)] = -math.inf
    sampling.forbid_step(after, forward_batch)
    return getattr(forward_batch, "lz_step", None), before, after.cpu()


def random_mask(rng: Any, rows: int) -> torch.Tensor | None:
    """Tokens that a grammar forbids in each row, bool [rows, V], never all; None without one."""
    if rng.random() < 0.5:
        return None
    masked = torch.ones(rows, VOCAB, dtype=torch.bool)
    for row in masked:
        row[rng.sample(range(VOCAB), rng.choice([1, 2, VOCAB]))] = False
    return masked


def assert_exact(
    req: Request, before: torch.Tensor, after: torch.Tensor, drafted: Sequence[int] = ()
) -> None:
    lz = req.sampling_params.lz_params or LZParams()
    outputs = [*req.output_ids, *req.flying, *drafted]
    prompt, window, onset = list(req.origin_input_ids), lz.window_size, lz.onset
    expected = before.double().numpy()
    is_lowered = False
    if lz.penalty:
        history = visible_history(prompt, outputs, lz.include_prompt)
        memory = has_memory(prompt, outputs, lz.include_prompt, window, onset, numbers=NUMBERS)
        waits = {"onset": onset, "memory": memory, "numbers": NUMBERS}
        delta = delta_bits(history, VOCAB, window, lz.buffer_size, lz.cost, **waits)
        is_lowered = min(delta) < math.log2(VOCAB)
        expected = expected + lz.penalty * (np.array(delta) - np.log2(VOCAB))
    if not is_lowered and not has_history(req.sampling_params):
        assert torch.equal(before, after)
        return
    expected = penalised(expected, prompt, outputs, penalties_of(req))
    np.testing.assert_allclose(after.numpy(), expected, atol=TOLERANCE, rtol=1e-4)


def verify_forward(
    pool: Pool, reqs: list[Request], trees: list[Tree], rng: random.Random
) -> list[list[int]]:
    """Run both hooks of a verify step, check every node; returns the tokens of each request."""
    nodes = len(trees[0].tokens)
    rows = pool.rows_of(reqs)
    batch = SimpleNamespace(
        reqs=reqs,
        model_config=RUNNER.model_config,
        req_pool_indices=rows.to(RUNNER.device),
        req_pool_indices_cpu=rows,
        req_to_token_pool=pool,
        seq_lens=batch_tensor([len(req.known) - 1 for req in reqs]),
    )
    first, sibling = zip(*(tree.links() for tree in trees), strict=True)
    verify_input = SimpleNamespace(
        draft_token=batch_tensor([token for tree in trees for token in tree.tokens]),
        draft_token_num=nodes,
        max_tree_depth=nodes,
        retrieve_next_token=batch_tensor(first),
        retrieve_next_sibling=batch_tensor(sibling),
    )
    before = torch.randn(len(reqs) * nodes, VOCAB)
    masked = random_mask(rng, len(before))
    judged = before.to(RUNNER.device, copy=True)
    grammar_mask = None if masked is None else object()
    verified = sampling.verify_step(verify_input, batch, judged, grammar_mask)
    if masked is not None:
        before[masked] = -math.inf
        judged[masked.to(RUNNER.device)] = -math.inf
    sampling.forbid_nodes(verified, judged)
    after = judged.cpu()
    accepted, indices = [], []
    for i, (req, tree) in enumerate(zip(reqs, trees, strict=True)):
        for node in range(nodes):
            drafted = [tree.tokens[ancestor] for ancestor in tree.path(node)[1:]]
            row = i * nodes + node
            assert_exact(req, before[row], after[row], drafted)
        path = tree.path(rng.randrange(nodes))
        bonus = rng.randrange(VOCAB)
        accepted.append([*(tree.tokens[node] for node in path[1:]), bonus])
        indices.append([i * nodes + node for node in path] + [-1] * (nodes - len(path)))
    sampling.accept_step(
        verified,
        batch_tensor(indices, torch.int32),
        batch_tensor([len(tokens) - 1 for tokens in accepted], torch.int32),
    )
    return accepted


def assert_all_exact(
    pool: Pool, reqs: list[Request], mode: str = "extend", *, masks: bool = False
) -> None:
    """Prefill or decode these requests."""
    parts = (reqs, []) if mode == "extend" else ([], reqs)
    _, before, after = forward(pool, mode, *parts, masks=masks)
    for req, *rows in zip(reqs, before, after, strict=True):
        assert_exact(req, *rows)


def draft_the_loop(req: Request, tree: Tree) -> None:
    """Let a request's tree hold what goes on with its loop."""
    if req.period is None:
        return
    for node in sorted(range(1, len(tree.tokens)), key=lambda node: len(tree.path(node))):
        text = [*req.known, *(tree.tokens[ancestor] for ancestor in tree.path(node)[1:-1])]
        tree.tokens[node] = req.continuation(text, tree.tokens[node])


lz_params = st.integers(1, MAX_WINDOW).flatmap(
    lambda window: st.fixed_dictionaries(
        {
            "lz_penalty": st.sampled_from([0.0, 0.15, 2.0]),
            "lz_window_size": st.just(window),
            "lz_buffer_size": st.integers(1, window),
            "lz_include_prompt": st.booleans(),
            "lz_cost": st.sampled_from(COSTS),
            "lz_onset": st.integers(0, 4),
        }
    )
)
last_n = st.sampled_from([-1, 0, 1, 2, 5, 30])
others = st.fixed_dictionaries(
    {},
    optional={
        "frequency_penalty": st.sampled_from([0.4, -1.5]),
        "presence_penalty": st.sampled_from([0.7, -2.0]),
        "repetition_penalty": st.sampled_from([1.3, 0.5]),
        "penalty_last_n": last_n,
        "min_new_tokens": st.sampled_from([1, 3, 40]),
        "stops": st.sampled_from([(), (0, 3)]),
        "no_repeat_ngram_size": st.integers(1, 4),
        "no_repeat_ngram_window": last_n,
        "no_repeat_ngram_whitelist": st.sampled_from([[], [1, 3]]),
        "dry_multiplier": st.sampled_from([0.8, 0.01]),
        "dry_base": st.sampled_from([1.0, 1.75]),
        "dry_allowed_length": st.integers(0, 4),
        "dry_penalty_last_n": last_n,
        "dry_sequence_breakers": st.sampled_from([["c"], ["\n"], [], ["ab", "bca"], ["abab"]]),
    },
)
# Ids from VOCAB up stand for multimodal placeholders: they match and are never an index.
prompts = st.lists(st.integers(0, VOCAB + 1), min_size=1, max_size=24)


class Scheduler(RuleBasedStateMachine):
    """Any order of prefills, chunks, mixed chunks, decodes, draft trees, retractions and row reuse.

    Tokens are read by the host one step late (overlap) or at once, at random, and every sampled
    position of every request is checked against the oracle. A decode server (prefill/decode
    disaggregation) gets its requests prefilled, with the first token sampled.
    """

    has_histories = True

    @initialize(overlap=st.booleans(), decode_server=st.booleans())
    def start(self, overlap: bool, decode_server: bool) -> None:
        self.pool = reserved_pool()
        self.overlap = overlap
        self.decode_server = decode_server
        self.role = mock.patch.object(sampling, "_is_decode_server", return_value=decode_server)
        self.role.start()
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    @rule(
        prompt=prompts,
        lz=lz_params,
        others=st.just({}) | others,
        period=st.none() | st.integers(1, MAX_WINDOW),
        counts=st.booleans(),
    )
    def arrive(
        self,
        prompt: list[int],
        lz: dict[str, object],
        others: dict[str, object],
        period: int | None,
        counts: bool,
    ) -> None:
        req = request(prompt, **lz, **(others if self.has_histories else {}))
        req.period, req.counts = period, counts
        self.waiting.append(req)

    def teardown(self) -> None:
        if hasattr(self, "role"):
            self.role.stop()

    @precondition(lambda self: self.decode_server and self.waiting and self.pool.free_slots)
    @rule(first=st.integers(0, VOCAB - 1), row_first=st.booleans())
    def hand_over(self, first: int, row_first: bool) -> None:
        """A request arrives prefilled, or comes back with the tokens of before its retraction."""
        req = self.waiting.pop()
        req.row = self.pool.alloc()
        if not req.output_ids:
            req.output_ids.append(first)
        self.running = [req, *self.running] if row_first else [*self.running, req]

    @precondition(lambda self: not self.decode_server and self.waiting and self.pool.free_slots)
    @rule(data=st.data(), mixed=st.booleans())
    def prefill(self, data: st.DataObject, mixed: bool) -> None:
        count = data.draw(st.integers(1, min(len(self.waiting), len(self.pool.free_slots))))
        admitted, self.waiting = self.waiting[:count], self.waiting[count:]
        for req in admitted:
            req.row = self.pool.alloc()
        chunked = admitted[-1]
        total = len(chunked.full_untruncated_fill_ids)
        for end in data.draw(st.lists(st.integers(1, max(1, total - 1)), max_size=2).map(sorted)):
            if end < total:
                chunked.extend_end = end
                self.step("extend", [chunked], [])
        for req in admitted:
            req.extend_end = len(req.full_untruncated_fill_ids)
        decodes = self.running if mixed else []
        self.step("mixed" if decodes else "extend", admitted, decodes)
        self.running = [*self.running, *admitted]

    @precondition(lambda self: self.running)
    @rule(as_extend=st.booleans(), steps=st.integers(1, 20))
    def decode(self, as_extend: bool, steps: int) -> None:
        for _ in range(steps):
            self.step("extend" if as_extend else "decode", [], self.running)

    @precondition(lambda self: self.running)
    @rule(nodes=st.integers(1, 6), seed=st.integers(0, 999), steps=st.integers(1, 4))
    def verify(self, nodes: int, seed: int, steps: int) -> None:
        """Draft trees are judged; of each, some path from its root is accepted."""
        rng = random.Random(seed)
        for _ in range(steps):
            trees = [Tree.random(rng, req.known[-1], nodes) for req in self.running]
            for req, tree in zip(self.running, trees, strict=True):
                draft_the_loop(req, tree)
            accepted = verify_forward(self.pool, self.running, trees, rng)
            for req, tokens in zip(self.running, accepted, strict=True):
                req.land()
                req.flying = tokens
                if not self.overlap:
                    req.land()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), retract=st.booleans())
    def leave(self, data: st.DataObject, retract: bool) -> None:
        """A request ends, is aborted, or is retracted and waits to resume. Its row is free."""
        req = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.pool.free_slots.append(req.row)
        req.row, req.flying = None, []
        if retract:
            self.waiting.append(req)

    def step(self, mode: str, prefills: list[Request], decodes: list[Request]) -> None:
        _, before, after = forward(self.pool, mode, prefills, decodes, masks=True)
        for i, req in enumerate([*prefills, *decodes]):
            if req in prefills and req.extend_end < len(req.full_untruncated_fill_ids):
                assert torch.equal(after[i], before[i])
                continue
            assert_exact(req, before[i], after[i])
            req.land()
            req.flying = [req.sample(before[i] + after[i])]
            if not self.overlap:
                req.land()


TestScheduler = pytest.mark.slow(Scheduler.TestCase)
TestScheduler.settings = settings(max_examples=60, stateful_step_count=25)


@pytest.mark.slow
def test_scheduler_with_the_kernels_of_a_gpu(
    cuda_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on Triton's interpreter, or on the GPU at hand."""
    run_kernels_of_a_gpu(cuda_kernels, monkeypatch)
    run_state_machine_as_test(
        Scheduler, settings=settings(max_examples=4, stateful_step_count=20, deadline=None)
    )


def torch_operators() -> SimpleNamespace:
    """The reference in the place of kernels, which knows nothing of histories."""

    def without_history(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, width, **_: function(*given, width=width)

    names = ("step", "verify", "accept")
    return SimpleNamespace(
        seed=reference.seed,
        **{name: without_history(getattr(reference, name)) for name in names},
        **dict.fromkeys(("seed_history", "forbid"), lambda *_: None),
    )


@pytest.mark.slow
def test_scheduler_with_the_torch_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "import_for", lambda device: torch_operators())
    monkeypatch.setattr(Scheduler, "has_histories", False)
    run_state_machine_as_test(
        Scheduler, settings=settings(max_examples=100, stateful_step_count=25, deadline=None)
    )


def admitted(pool: Pool, req: Request) -> Request:
    req.row = pool.alloc()
    req.extend_end = len(req.full_untruncated_fill_ids)
    return req


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_logits_that_are_not_float32_are_refused(dtype: torch.dtype) -> None:
    """No kernel could lower them: upstream has none (tests/patches/test_logits_dtype.py)."""
    pool = reserved_pool()
    req = admitted(pool, request([1, 2, 1]))
    step = plan(pool, "extend", [req], [])
    with pytest.raises(TypeError, match=f"must be torch.float32 .* got {dtype}"):
        sampling.apply_step(torch.zeros(1, VOCAB, dtype=dtype), step)


def test_a_row_reassigned_without_a_prefill_is_inactive() -> None:
    """Beam search takes rows without a prefill of their own."""
    pool = reserved_pool()
    req, other = admitted(pool, request([1, 2, 1])), admitted(pool, request([1, 2, 1]))
    forward(pool, "extend", [req, other], [])
    pool.req_generation[req.row] += 1
    step, *_ = forward(pool, "decode", [], [req])
    assert step is None
    for _ in range(2):
        _, before, after = forward(pool, "decode", [], [req, other])
        assert torch.equal(before[0], after[0])
        assert_exact(other, before[1], after[1])
        other.flying = [*other.flying, 1]


def test_a_window_planned_but_never_sampled_is_cleared() -> None:
    """A request that only scores its prompt is planned, but never sampled."""
    pool = reserved_pool()
    stale = admitted(pool, request([1, 2, 1]))
    forward(pool, "extend", [stale], [])
    pool.free_slots.append(stale.row)
    scored = admitted(pool, request([1, 2, 1], lz_penalty=0.0))
    assert scored.row == stale.row
    plan(pool, "extend", [scored], [])
    pool.free_slots.append(scored.row)
    follower = admitted(pool, request([1, 2, 1], lz_penalty=0.0))
    beside = admitted(pool, request([1, 2, 1]))
    assert follower.row == stale.row
    _, before, after = forward(pool, "extend", [follower, beside], [])
    assert torch.equal(before[0], after[0])
    assert_exact(beside, before[1], after[1])


def test_a_session_that_keeps_its_row_may_turn_the_penalty_off() -> None:
    pool = reserved_pool()
    first = admitted(pool, request([1, 2, 1]))
    forward(pool, "extend", [first], [])
    second = request([1, 2, 1, 3], lz_penalty=0.0)
    second.row, second.extend_end = first.row, 4
    _, before, after = forward(pool, "extend", [second], [])
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    "kind",
    [
        {"is_draft_worker": True},
        {"is_generation": False},
        {"pp_group": SimpleNamespace(is_last_rank=False)},
    ],
    ids=["draft worker", "embedding model", "not the last rank of a pipeline"],
)
def test_runners_that_never_sample_reserve_no_windows(kind: dict[str, object]) -> None:
    pool = reserved_pool(**kind)
    assert not hasattr(pool, "lz_penalizer")
    req = admitted(pool, request([1, 2, 1]))
    batch = SimpleNamespace(
        forward_mode=Mode("extend"), reqs=[req], req_to_token_pool=pool, decoding_reqs=None
    )
    forward_batch = SimpleNamespace()
    sampling.plan_step(batch, SimpleNamespace(**vars(RUNNER) | kind), forward_batch)
    assert not hasattr(forward_batch, "lz_step")


def test_a_draft_worker_plans_nothing_for_the_pool_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = reserved_pool()
    monkeypatch.setattr(RUNNER, "is_draft_worker", True)
    req = admitted(pool, request([1, 2, 1], lz_penalty=1.0, frequency_penalty=1.0))
    assert not hasattr(plan(pool, "extend", [req], []), "lz_step")
    assert not pool.lz_penalizer.has_users
    monkeypatch.setattr(RUNNER, "is_draft_worker", False)
    assert plan(pool, "extend", [req], []).lz_step.windows


def test_a_refused_mode_reserves_no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "unsupported_modes", lambda config: iter(["on a toaster"]))
    pool = reserved_pool()
    assert not hasattr(pool, "lz_penalizer")
    without = admitted(pool, request([1, 2, 1], lz_penalty=0.0))
    step, *_ = forward(pool, "extend", [without], [])
    assert step is None
    with pytest.raises(AssertionError, match="a mode that is refused"):
        forward(pool, "extend", [admitted(pool, request([1, 2, 1]))], [])


class NoMemory(TorchDispatchMode):
    """Lets no tensor of more than some bytes be made."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.nbytes > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return made


@pytest.mark.parametrize("most", [100, 2**16])
def test_missing_memory_stops_the_start_with_one_sentence(most: int) -> None:
    """The memory of the windows, and that of the histories."""
    pool = Pool()
    with pytest.raises(RuntimeError) as caught, NoMemory(most):
        sampling.reserve_windows(SimpleNamespace(**vars(RUNNER), req_to_token_pool=pool))
    size = MAX_WINDOW * 8 + 40
    assert str(caught.value) == (
        f"the LZ penalty cannot reserve {(ROWS + 1) * size} bytes on cpu ({ROWS + 1} request rows "
        f"of {size} bytes) and {pool.lz_room.bytes} bytes for the histories of other penalties "
        "(CUDA out of memory. Tried to allocate 1.00 GiB.): lower --lz-max-window-size, which is "
        f"{MAX_WINDOW}, --lz-history-memory, which is 4 MiB, or --max-running-requests."
    )
    assert not hasattr(pool, "lz_penalizer")


def test_other_start_errors_are_not_reported_as_missing_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(device: torch.device) -> ModuleType:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(kernels, "import_for", broken)
    with pytest.raises(RuntimeError, match=r"^no kernel image is available$"):
        sampling.reserve_windows(SimpleNamespace(**vars(RUNNER), req_to_token_pool=Pool()))


def test_a_request_without_room_to_generate_has_no_penalty() -> None:
    """Upstream samples such a request only in a batch with others, which must not matter."""
    pool = reserved_pool()
    nothing = admitted(pool, request([1, 2, 1, 2, 1], max_new_tokens=0))
    other = admitted(pool, request([1, 2, 1, 2, 1]))
    _, before, after = forward(pool, "extend", [nothing, other], [])
    assert (before[0] == after[0]).all()
    assert_exact(other, before[1], after[1])
    step, *_ = forward(pool, "extend", [admitted(pool, request([1, 1], max_new_tokens=0))], [])
    assert step is None


def handed_over(pool: Pool, req: Request, first: int = 1) -> Request:
    req.row = pool.alloc()
    req.output_ids.append(first)
    return req


@pytest.mark.usefixtures("decode_server")
def test_a_hand_over_without_host_tokens_raises() -> None:
    pool = reserved_pool()
    req = handed_over(pool, request([1, 2, 1]))
    req.flying = [2]
    with pytest.raises(AssertionError, match="not all"):
        forward(pool, "decode", [], [req])


class DeviceWatch(TorchDispatchMode):
    """Notes what the host would wait for on a GPU, and the size of every tensor made.

    For tensors of the `meta` device: they hold no data, so what reads a value back raises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.made: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [arg for arg in [*args, *kwargs.values()] if isinstance(arg, torch.Tensor)]
        to_device = any(t.device.type == "cpu" for t in tensors) and (
            any(t.device.type == "meta" for t in tensors)
            or str(kwargs.get("device", "cpu")) == "meta"
        )
        if to_device and not kwargs.get("non_blocking"):
            self.waits.append(str(func))
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and func._schema.returns[0].alias_info is None:
            self.made.append(out.numel())
        return out


class Launches:
    """Stands in for a Triton kernel: notes each grid, and for what a binary would be compiled."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, int]] = []
        self.binaries: set[object] = set()
        self.keys: dict[object, object] = {}

    def __call__(
        self,
        grid: tuple[int, int],
        *args: object,
        constants: tuple[int, ...] = (),
        types: tuple[torch.dtype, ...] = (),
    ) -> None:
        self.grids.append(grid)
        # Triton's key, where nothing is specialised on values: types, and what is constant.
        given = tuple(getattr(arg, "dtype", type(arg)) for arg in args)
        # What `Kernel` takes for it must not say less.
        assert self.keys.setdefault((constants, types), given) == given
        self.binaries.add((given, constants))


@pytest.fixture
def launches(cuda_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Launches]:
    """Let the device be one without data, on which no kernel runs."""
    made = {name: Launches() for name in ("_seed", "_step", "_verify", "_accept", "_forbid")}
    for name, stand_in in made.items():
        monkeypatch.setattr(cuda_kernels, name, stand_in)
    monkeypatch.setattr(kernels, "import_for", lambda device: cuda_kernels)
    return made


@pytest.mark.parametrize(
    "others",
    [
        {},
        {
            "frequency_penalty": 0.5,
            "dry_multiplier": 0.5,
            "dry_sequence_breakers": [],
            "min_new_tokens": 3,
        },
    ],
    ids=str,
)
def test_a_decode_step_is_one_launch_and_neither_allocates_nor_waits_for_the_device(
    launches: dict[str, Launches], others: dict[str, object]
) -> None:
    """With histories it allocates a place for the newest token of each row."""
    vocab, rows = 100_000, 3
    pool = Pool()
    reqs = [
        admitted(pool, request([1, 2, 1], lz_window_size=MAX_WINDOW, **others)) for _ in range(rows)
    ]
    pool.lz_penalizer = penalizer.Penalizer(
        pool.req_generation, MAX_WINDOW, "meta", replace(ROOM, vocab_size=vocab)
    )
    logits = torch.zeros(rows, vocab, device="meta")
    for mode in ("extend", "decode"):
        batch = SimpleNamespace(
            forward_mode=Mode(mode),
            reqs=reqs,
            model_config=RUNNER.model_config,
            req_pool_indices_cpu=torch.tensor([req.row for req in reqs]),
            req_to_token_pool=pool,
            decoding_reqs=None,
        )
        forward_batch = SimpleNamespace(
            req_pool_indices=torch.empty(rows, dtype=torch.int64, device="meta"),
            seq_lens=torch.empty(rows, dtype=torch.int64, device="meta"),
            sampling_info=SimpleNamespace(grammars=None),
            input_ids=torch.empty(rows, dtype=torch.int64, device="meta"),
        )
        with DeviceWatch() as watch:
            sampling.plan_step(batch, RUNNER, forward_batch)
            sampling.apply_step(logits, forward_batch)
        assert watch.waits == []
        if mode == "decode":
            assert watch.made == ([2 * rows] if others else [])
        else:
            windows = rows * (8 + bytes_of_row(MAX_WINDOW))
            assert max(watch.made) <= (8 * 2048 * rows if others else windows)
    assert launches["_step"].grids == [(rows, 1), (rows, 1)]


def test_a_verify_step_is_two_launches_and_never_waits_for_the_device(
    launches: dict[str, Launches],
) -> None:
    vocab, rows, nodes = 100_000, 3, 4
    pool = Pool()
    reqs = [admitted(pool, request([1, 2, 1], lz_window_size=MAX_WINDOW)) for _ in range(rows)]
    pool.lz_penalizer = penalizer.Penalizer(
        pool.req_generation, MAX_WINDOW, "meta", replace(ROOM, vocab_size=vocab)
    )
    on_device = {"dtype": torch.int64, "device": "meta"}
    batch = SimpleNamespace(
        forward_mode=Mode("extend"),
        reqs=reqs,
        req_pool_indices=torch.empty(rows, **on_device),
        req_pool_indices_cpu=torch.tensor([req.row for req in reqs]),
        req_to_token_pool=pool,
        seq_lens=torch.empty(rows, **on_device),
        decoding_reqs=None,
    )
    sampling.plan_step(batch, RUNNER, SimpleNamespace())
    verify_input = SimpleNamespace(
        draft_token=torch.empty(rows * nodes, **on_device),
        draft_token_num=nodes,
        max_tree_depth=nodes,
        retrieve_next_token=torch.empty(rows, nodes, **on_device),
        retrieve_next_sibling=torch.empty(rows, nodes, **on_device),
    )
    logits = torch.zeros(rows * nodes, vocab, device="meta")
    accepted = torch.empty(rows, nodes, **on_device), torch.empty(rows, **on_device)
    with DeviceWatch() as watch:
        verified = sampling.verify_step(verify_input, batch, logits, None)
        sampling.forbid_nodes(verified, logits)
        sampling.accept_step(verified, *accepted)
    assert verified is not None
    assert watch.waits == []
    assert watch.made == [rows * nodes * nodes]  # the paths
    assert launches["_verify"].grids == [(rows, nodes)]
    assert launches["_accept"].grids == [(rows, 1)]


def test_nothing_is_launched_for_a_batch_without_the_penalty(launches: dict[str, Launches]) -> None:
    """This holds although a request that waits for its turn has a window."""
    pool = Pool()
    pool.lz_penalizer = penalizer.Penalizer(pool.req_generation, MAX_WINDOW, "cpu", ROOM)
    waits = admitted(pool, request([1, 2, 1]))
    runs = admitted(pool, request([1, 2], lz_penalty=0.0))
    forward(pool, "extend", [waits], [])
    assert launches["_step"].grids == [(1, 1)]
    forward(pool, "extend", [runs], [])
    forward(pool, "decode", [], [runs])
    assert launches["_step"].grids == [(1, 1)]


@pytest.mark.parametrize("capacity", [16, 600, 8192])
def test_nothing_is_compiled_after_the_start(
    launches: dict[str, Launches], cuda_kernels: ModuleType, capacity: int
) -> None:
    """Whatever size of tree adaptive speculation takes next; upstream's trees of one node have
    int32 tokens, all others int64."""
    sizes = {1, 2, 4, 6, 8, 40, 200}
    device = torch.device("meta")
    kernels.warm_up(cuda_kernels, capacity, device, sizes)
    compiled_at_start = {name: set(kernel.binaries) for name, kernel in launches.items()}
    assert all(compiled_at_start.values())
    state = WindowState(4, capacity, device)
    rows = torch.zeros(3, dtype=torch.int64, device=device)
    for width in {1, capacity // 2, capacity}:
        logits = torch.zeros(3, 64, device=device)
        inputs = StepInputs(rows, rows, rows, prefilled=1, offset=7)
        cuda_kernels.step(state, logits, inputs, width=width)
        for nodes in sizes:
            tokens = torch.zeros(3, nodes, dtype=torch.int64, device=device)
            drafts = tokens.int() if nodes == 1 else tokens
            trees = DraftTrees(rows, rows, drafts, tokens, tokens, depth=nodes)
            logits = torch.zeros(3 * nodes, 64, device=device)
            paths = cuda_kernels.verify(state, logits, trees, width=width)
            accepted = AcceptedPaths(rows, rows, paths, tokens.int(), rows.int())
            cuda_kernels.accept(state, accepted, width=width)
    assert {name: kernel.binaries for name, kernel in launches.items()} == compiled_at_start


class Untouchable:
    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"decode read a request's {name}")


def test_a_batch_that_only_decodes_is_planned_once() -> None:
    pool = reserved_pool()
    one, other = admitted(pool, request([1, 2, 1])), admitted(pool, request([1, 2, 1]))
    forward(pool, "extend", [one], [])
    steps = [forward(pool, "decode", [], [one])[0] for _ in range(3)]
    assert steps[1] is steps[0]
    assert steps[2] is steps[0]
    forward(pool, "extend", [other], [])
    both = [forward(pool, "decode", [], [one, other])[0] for _ in range(2)]
    assert both[1] is both[0]
    forward(pool, "extend", [admitted(pool, request([1], lz_penalty=0.0))], [])
    assert forward(pool, "decode", [], [one, other])[0] is not both[0]


@pytest.mark.parametrize("penalty", [0.0, 0.5])
@pytest.mark.parametrize("is_decode_server", [False, True])
def test_decodes_do_not_read_requests_again(
    penalty: float, is_decode_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_is_decode_server", lambda: is_decode_server)
    pool = reserved_pool()
    req = request([1, 2, 1], lz_penalty=penalty)
    if is_decode_server:
        forward(pool, "decode", [], [handed_over(pool, req)])
    else:
        forward(pool, "extend", [admitted(pool, req)], [])
    batch = SimpleNamespace(
        forward_mode=Mode("decode"),
        reqs=[Untouchable()],
        req_pool_indices_cpu=torch.tensor([req.row]),
        req_to_token_pool=pool,
        decoding_reqs=None,
    )
    forward_batch = SimpleNamespace()
    sampling.plan_step(batch, RUNNER, forward_batch)
    has_plan = getattr(forward_batch, "lz_step", None) is not None
    assert has_plan == (penalty > 0)


ALONE = (
    {"frequency_penalty": 0.4},
    {"presence_penalty": -0.7},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.5, "penalty_last_n": 4},
    {"frequency_penalty": 1.0, "penalty_last_n": 3},
    {"min_new_tokens": 4, "stops": (1, 2)},
    {"no_repeat_ngram_size": 1, "no_repeat_ngram_window": 2},
    {"no_repeat_ngram_size": 3, "no_repeat_ngram_whitelist": [0, 2]},
    {"no_repeat_ngram_size": 2, "no_repeat_ngram_window": 9},
    {"dry_multiplier": 0.8, "dry_sequence_breakers": []},
    {"dry_multiplier": 0.8, "dry_penalty_last_n": 5, "penalty_last_n": 30},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_penalty_last_n": 12},
    {"dry_multiplier": 0.8, "dry_allowed_length": 0, "dry_sequence_breakers": ["c"]},
    *(
        {
            "dry_multiplier": 0.8,
            "dry_allowed_length": 1,
            "dry_penalty_last_n": last_n,
            "dry_sequence_breakers": breakers,
        }
        for last_n in (-1, 10)
        for breakers in (["aab"], ["bb", "aa"], ["cabca"], ["abab", "ba"])
    ),
)


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
@pytest.mark.parametrize("penalties", ALONE, ids=str)
def test_each_penalty_alone(
    name: str,
    penalties: dict[str, object],
    cuda_kernels: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On texts of two tokens or more, which repeat themselves; a prefill, trees, two decodes."""
    if name == "cuda":
        run_kernels_of_a_gpu(cuda_kernels, monkeypatch)
    rng = random.Random(f"{penalties}")
    is_quick = name == "cpu" or DEVICE != "cpu"  # Triton's interpreter takes seconds
    for _ in range(5 if is_quick else 1):
        pool = reserved_pool()
        reqs = []
        for length in (1, 2, 9, 40) if is_quick else (9, 40):
            text = [rng.randrange(rng.randint(2, VOCAB)) for _ in range(length)]
            split = rng.randint(1, length)
            req = request(text[:split], lz_penalty=0.0, **penalties)
            req.output_ids.extend(text[split:])
            reqs.append(admitted(pool, req))
        assert_all_exact(pool, reqs, masks=True)
        for req in reqs:
            req.output_ids.append(rng.randrange(2))
        trees = [Tree.random(rng, req.known[-1], 7 if is_quick else 4) for req in reqs]
        for req, tokens in zip(reqs, verify_forward(pool, reqs, trees, rng), strict=True):
            req.output_ids.extend(tokens)
        for _ in range(2 if is_quick else 1):
            assert_all_exact(pool, reqs, "decode", masks=True)
            for req in reqs:
                req.output_ids.append(rng.randrange(2))


@pytest.mark.parametrize("name", ["cpu", "cuda"])
@pytest.mark.parametrize("last_n", [-1, 3400])
def test_repeats_from_far_back(
    last_n: int, name: str, cuda_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of tokens before, all of them or the newest in a ring that wraps."""
    if name == "cuda":
        run_kernels_of_a_gpu(cuda_kernels, monkeypatch)
    rng = random.Random(last_n)
    pool = reserved_pool()
    fields = {
        "dry_multiplier": 0.8,
        "dry_base": 1.001,
        "dry_penalty_last_n": last_n,
        "no_repeat_ngram_size": 7,
        "no_repeat_ngram_window": last_n,
    }
    reqs = []
    for period, length in ((1300, 3900), (2900, 3600), (1700, 4900)):
        text = [rng.randrange(VOCAB) for _ in range(period)] * 3
        own = request(text[:length], lz_penalty=0.0, dry_sequence_breakers=[], **fields)
        reqs.append(admitted(pool, own))
    assert_all_exact(pool, reqs)
    for req in reqs:
        req.output_ids.append(req.known[-1300])
    trees = [Tree.random(rng, req.known[-1], 3) for req in reqs]
    for req, tokens in zip(reqs, verify_forward(pool, reqs, trees, rng), strict=True):
        req.output_ids.extend(tokens)
    assert_all_exact(pool, reqs, "decode")


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_lz_repetition_and_dry_act_on_one_token(
    name: str, cuda_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads the logit that the one before has written, whoever wrote it."""
    if name == "cuda":
        run_kernels_of_a_gpu(cuda_kernels, monkeypatch)
    rng = random.Random(name)
    pool = reserved_pool()
    fields = {"lz_penalty": 2.0, "repetition_penalty": 1.7, "dry_multiplier": 0.8}
    reqs = [
        admitted(pool, request([token, (token + 1) % VOCAB] * 6, lz_cost=cost, **fields))
        for token, cost in ((0, "rate"), (1, "marginal"), (3, "rate"))
    ]
    assert_all_exact(pool, reqs)
    for req in reqs:
        req.output_ids.append(req.origin_input_ids[0])
    trees = [Tree.random(rng, req.known[-1], 3) for req in reqs]
    for req, tree in zip(reqs, trees, strict=True):
        tree.tokens[1:] = [req.origin_input_ids[1]] * 2
    verify_forward(pool, reqs, trees, rng)


# The examples of llama.cpp's own test of DRY: probabilities are equal before.
LLAMA_CPP = (
    ([0, 1], 4, 1.0, 2, 4, (), (0.25, 0.25, 0.25, 0.25)),
    ([0, 1, 2, 0, 1], 4, 1.0, 2, 5, (), (0.296923, 0.296923, 0.109232, 0.296923)),
    ([0, 1, 3, 4, 0, 1], 5, 1.0, 2, 6, ("d",), (0.2, 0.2, 0.2, 0.2, 0.2)),
    ([0, 1, 2, 0, 1], 5, 2.0, 2, 5, (), (0.241818, 0.241818, 0.032727, 0.241818, 0.241818)),
    ([0, 1, 2, 3, 4, 0, 1], 5, 1.0, 4, 7, (), (0.2, 0.2, 0.2, 0.2, 0.2)),
)


@pytest.mark.parametrize("example", LLAMA_CPP, ids=str)
def test_dry_equals_the_examples_of_llama_cpp(
    example: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, vocab, multiplier, allowed, last_n, breakers, expected = example
    words = (b"a", b"b", b"c", b"d", b"e")
    monkeypatch.setattr(
        "lz_penalty.breakers.tables_for",
        lambda _, size, given: tables_of(given, Vocabulary(words), encode, size),
    )
    pool = reserved_pool()
    req = request(
        tokens,
        lz_penalty=0.0,
        dry_multiplier=multiplier,
        dry_base=1.1,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=list(breakers),
    )
    forward_batch = plan(pool, "extend", [admitted(pool, req)], [])
    logits = torch.zeros(1, vocab)
    sampling.apply_step(logits, forward_batch)
    torch.testing.assert_close(logits.softmax(1)[0], torch.tensor(expected), atol=1e-6, rtol=0)


def leave(pool: Pool, *reqs: Request) -> None:
    """Requests end, and their rows are free."""
    for req in reqs:
        pool.free_slots.append(req.row)
        req.row, req.is_finished = None, True


def test_memory_is_taken_at_the_start_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories are added and removed in it, and are moved together to close gaps."""
    pool = narrow_pool(monkeypatch)
    state = pool.lz_penalizer.histories.state
    tensors = [state.memory, state.numbers, state.strengths, state.breakers.mask, state.forbidden]
    rng, moved = random.Random(3), 0
    running: list[Request] = []
    for _ in range(60):
        req = request(
            [rng.randrange(3) for _ in range(rng.randint(1, 40))],
            max_new_tokens=rng.choice([10, 200]),
            **rng.choice([{"dry_multiplier": 0.5}, {"no_repeat_ngram_size": 2}]),
        )
        adder = SimpleNamespace(can_run_list=[])
        for one in sampling.with_room([req], adder, pool):
            adder.can_run_list.append(admitted(pool, one))
        if adder.can_run_list:
            step, before, after = forward(pool, "extend", [req], [])
            moved += len(step.history.moves)
            assert_exact(req, before[0], after[0])
            req.land()
            req.flying = [rng.randrange(3)]
            running.append(req)
        else:
            assert running
        while len(running) == ROWS or (running and not adder.can_run_list):
            leave(pool, running.pop(rng.randrange(len(running))))
            adder.can_run_list.append(req)
        if running:
            _, before, after = forward(pool, "decode", [], running)
            for one, *rows in zip(running, before, after, strict=True):
                assert_exact(one, *rows)
                one.land()
                one.flying = [rng.randrange(3)]
    assert moved
    assert tensors == [
        state.memory,
        state.numbers,
        state.strengths,
        state.breakers.mask,
        state.forbidden,
    ]
    assert state.memory.nbytes == 2**14


def narrow_pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool with 16 KiB for histories."""
    monkeypatch.setattr(
        history_room,
        "room_for",
        lambda runner, rows, nodes: HistoryRoom(VOCAB, words=4096, nodes=0, logits=rows),
    )
    return reserved_pool()


def waiting_that_run(pool: Pool, waiting: list[Request], most: int = ROWS) -> list[Request]:
    """Those that upstream's loop over its queue would let begin."""
    adder = SimpleNamespace(can_run_list=[])
    for req in sampling.with_room(waiting, adder, pool):
        if len(adder.can_run_list) == most:
            break
        adder.can_run_list.append(req)
    return adder.can_run_list


def test_requests_wait_for_room_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a history they pass; a smaller one does not pass a larger one that waits."""
    pool = narrow_pool(monkeypatch)
    large = [request([1], max_new_tokens=900, lz_penalty=0.0, dry_multiplier=1) for _ in "abc"]
    small = request([1], max_new_tokens=1, lz_penalty=0.0, dry_multiplier=1)
    plain = request([1], lz_penalty=0.0)
    assert waiting_that_run(pool, [*large, small, plain]) == [large[0], plain]
    admitted(pool, large[0])
    assert waiting_that_run(pool, [*large[1:], small, plain]) == [plain]
    assert waiting_that_run(pool, [small, *large[1:]]) == [small]
    forward(pool, "extend", [large[0]], [])
    leave(pool, large[0])
    assert waiting_that_run(pool, [*large[1:], small]) == [large[1]]
    assert_all_exact(pool, [admitted(pool, large[1])])
    assert history_room.used(pool.lz_room).words == large[1].lz_need.words


def test_the_last_admitted_request_counts_toward_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream stops iterating after the request that fills its batch."""
    pool = reserved_pool()
    reqs = [request([1], dry_multiplier=1) for _ in "ab"]
    adder = SimpleNamespace(can_run_list=[])
    for req in sampling.with_room(reqs, adder, pool):
        adder.can_run_list.append(req)
        break
    assert [req for req, _ in pool.lz_room.holders.values()] == reqs[:1]


def test_a_retracted_request_returns_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = narrow_pool(monkeypatch)
    first, second = (request([1], max_new_tokens=900, dry_multiplier=1) for _ in "ab")
    assert waiting_that_run(pool, [first, second]) == [first]
    assert_all_exact(pool, [admitted(pool, first)])
    pool.free_slots.append(first.row)
    first.row = None
    assert waiting_that_run(pool, [second, first]) == [second]
    assert_all_exact(pool, [admitted(pool, second)])
    leave(pool, second)
    assert waiting_that_run(pool, [first]) == [first]


@pytest.mark.usefixtures("decode_server")
def test_a_decode_server_also_makes_requests_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = narrow_pool(monkeypatch)
    first, second = (
        handed_over(pool, request([1], max_new_tokens=900, dry_multiplier=1)) for _ in "ab"
    )
    plain = handed_over(pool, request([1]))
    assert [sampling.takes_room(req, pool) for req in (first, first, second, plain)] == [
        *(True, True, False, True)
    ]
    forward(pool, "decode", [], [first, plain])
    leave(pool, first)
    assert sampling.takes_room(second, pool)
    _, before, after = forward(pool, "decode", [], [second, plain])
    assert_exact(second, before[0], after[0])


def test_missing_room_ends_the_request_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request was admitted without room, which upstream's queue would never do."""
    ended = []
    monkeypatch.setattr(sampling, "_end_without_room", ended.append)
    pool = narrow_pool(monkeypatch)
    first, second = (
        admitted(pool, request([1, 2, 1, 2], max_new_tokens=900, dry_multiplier=1)) for _ in "ab"
    )
    assert_all_exact(pool, [first])
    forward(pool, "mixed", [second], [first])
    assert ended == [second]
    first.output_ids.append(1)
    second.output_ids.append(1)
    _, before, after = forward(pool, "decode", [], [first, second])
    assert_exact(first, before[0], after[0])


def test_a_history_that_never_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = narrow_pool(monkeypatch)
    req = request([1, 2, 1], max_new_tokens=4000, dry_multiplier=1)
    sampling.abort_unservable(req, pool)
    assert req.to_finish == (
        "max_new_tokens must be lower with these penalties, got 4000: the history of up to 4003 "
        "tokens would take 33108 bytes, and this server has 16384 (--lz-history-memory)."
    )
    assert not waiting_that_run(pool, [req])[0].lz_need.words
    # One that was aborted before, as for a session that does not exist, keeps nobody waiting.
    aborted = request([1, 2, 1], max_new_tokens=4000, dry_multiplier=1)
    aborted.set_finish_with_abort("no such session")
    sampling.abort_unservable(aborted, pool)
    assert aborted.to_finish == "no such session"
    beside = request([1], max_new_tokens=900, dry_multiplier=1)
    assert waiting_that_run(pool, [aborted, beside]) == [aborted, beside]
    fits = request([1, 2, 1], max_new_tokens=900, no_repeat_ngram_size=2)
    sampling.abort_unservable(fits, pool)
    assert fits.to_finish is None


def test_breakers_are_refused_where_the_texts_of_tokens_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_room, "vocabulary_of", lambda tokenizer, size: None)
    pool = reserved_pool()
    req = request([1, 2, 1], dry_multiplier=1, dry_sequence_breakers=["x", "y"])
    sampling.abort_unservable(req, pool)
    assert req.to_finish == (
        "dry_sequence_breakers must be [] on this server, which cannot tell the texts of its "
        "model's tokens, got 2 texts."
    )


def test_histories_of_ended_requests_are_freed() -> None:
    """The histories of requests that ended, and of rows that now belong to other requests."""
    pool = reserved_pool()
    for prompt in ([1, 2, 1], [1, 2] * 20, [0, 1, 2, 3] * 300):
        reqs = [
            admitted(pool, request(prompt, dry_multiplier=0.5, lz_penalty=0.3 * (i % 2)))
            for i in range(ROWS)
        ]
        assert_all_exact(pool, reqs)
        assert len(pool.lz_penalizer.histories._places) == ROWS
        leave(pool, *reqs)
    plain = admitted(pool, request([1, 1], lz_penalty=0.0))
    beside = admitted(pool, request([1, 1], lz_penalty=0.0, frequency_penalty=1.0))
    _, before, after = forward(pool, "extend", [plain, beside], [])
    assert torch.equal(before[0], after[0])
    assert_exact(beside, before[1], after[1])
    assert len(pool.lz_penalizer.histories._places) == 1


def test_lists_of_breakers_share_tables_and_replace_unused_ones() -> None:
    pool = reserved_pool()
    lists = (["c"], ["ab"], ["c"], ["bca", "a"])
    made = set()
    for again in range(12):
        reqs = [
            admitted(
                pool,
                request(
                    [0, 1, 3] * 4,
                    dry_multiplier=0.5,
                    dry_sequence_breakers=[*one, "b" * again] if again else one,
                ),
            )
            for one in lists
        ]
        assert_all_exact(pool, reqs)
        others = pool.lz_penalizer.histories
        made |= {id(others.state.breakers.mask)}
        assert set(others._list_of_row.values()) <= set(others._lists)
        leave(pool, *reqs)
    assert len(made) == 1


def test_lists_of_breakers_come_into_use_a_few_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends a thousand lists delays only its own requests."""
    pool = reserved_pool()
    pool.lz_room.lists = 6
    reqs = [request([1], dry_multiplier=1, dry_sequence_breakers=["a" * (n + 1)]) for n in range(9)]
    same = request([1], dry_multiplier=1, dry_sequence_breakers=["a"])
    begun = waiting_that_run(pool, reqs, most=9)
    assert begun == reqs[: history_room.MOST_NEW_LISTS]
    for row, req in enumerate(begun):
        req.row = row
    assert waiting_that_run(pool, [same, *reqs[4:]], most=9) == [same, *reqs[4:6]]
