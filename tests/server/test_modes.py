"""The contract however requests are scheduled: batches, caches, chunks, retraction, aborts."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from bench.http_client import lines
from oracle import Penalties, copies_alike, has_memory, log_softmax, visible_history
from server.client import (
    OFF,
    Lz,
    base_rows,
    generate,
    penalty_fields,
    post,
    post_ok,
    request_body,
    stream_sample,
    streaming,
    to_sample,
    top_rows,
    without_logprobs,
)
from server.configurations import COMBINED, SCHEDULERS, SPECULATION, on
from server.contract import (
    NO_PENALTIES,
    SUMMARY,
    TOLERANCE,
    Case,
    bits,
    check,
    check_together,
    deviations,
    run_together,
)
from server.encodings import FINITE, encodings
from server.launch import Server, vocab_size
from server.model import numbers, stop_ids
from server.prompts import case, mixed, parameters, repetitive, token_ids

EVERYWHERE = (*(*SCHEDULERS, "tp2", "dp2", "pp2", "dp-attention", "disaggregated"), *SPECULATION)


@on(*SCHEDULERS, "tp2", "eagle-tree")
def test_noise_without_a_penalty(server: Server) -> None:
    """How far prefill and decode differ without any penalty, which determines the tolerance."""
    rng = random.Random("noise")
    cases = [case(rng, 40, 48, OFF) for _ in range(6)]
    mode = f"{server.config.name}: noise, penalty off"
    samples = run_together(server, cases)
    worst = max(c.check(server, s, mode) for c, s in zip(cases, samples, strict=True))
    assert worst < TOLERANCE / 2


@pytest.mark.every_server
@on(*EVERYWHERE, *COMBINED)
def test_mixed_batch(server: Server) -> None:
    """Many requests at once, their parameters mixed, a third without the penalty."""
    rng = random.Random(f"batch {server.config.name}")
    check_together(server, mixed(rng, 12, 40, 32), f"{server.config.name}: mixed batch")


@pytest.mark.each_kind
@on(*EVERYWHERE)
def test_the_onset_waits_for_a_loop(server: Server) -> None:
    """Loops of periods 1 to 300 in prompts and outputs, onsets 0 to 4 mixed in one batch; some have
    turned the memory on."""
    rng = random.Random(f"onset {server.config.name}")
    cases = []
    for i, period in enumerate((1, 2, 3, 7, 20, 60, 150, 300)):
        loop = token_ids(rng, period)
        copies = max(rng.randint(1, 4), -(-44 // period))
        text = [*token_ids(rng, 5), *loop * copies, *loop[: rng.randrange(period)]]
        lz = replace(parameters(rng), onset=i % 5, window=1024, include_prompt=i % 4 != 3)
        cases.append(Case(text[-350:], 40, lz, favoured=tuple(loop[:3]) if period < 4 else ()))
    samples = check_together(server, cases, f"{server.config.name}: onset")
    remembered = [
        has_memory(s.prompt, s.outputs, c.lz.include_prompt, c.lz.window, c.lz.onset)
        for c, s in zip(cases, samples, strict=True)
    ]
    assert any(remembered)
    assert not all(remembered)


@pytest.mark.each_kind
@on(*EVERYWHERE)
def test_the_onset_sees_a_loop_up_to_numbers(server: Server) -> None:
    """Lines that differ by a number, in prompts and outputs; in the last they are too many."""
    rng = random.Random(f"numbers {server.config.name}")
    own = sorted(numbers())
    cases = []
    for i, words in enumerate((6, 8, 11, 30, 4)):
        line = [token for token in token_ids(rng, 2 * words) if token not in own][:words]
        text = [token for _ in range(7) for token in (*line, rng.choice(own))]
        lz = Lz(0.5, 1024, 32, True, onset=1 + i % 3)
        cases.append(Case(text[: len(text) - rng.randrange(words)], 40, lz))
    samples = check_together(server, cases, f"{server.config.name}: loops up to numbers")
    seen = [visible_history(s.prompt, [], True) for s in samples]
    counts = [max(copies_alike(x, 1024, numbers()).values()) for x in seen]
    assert all(count > c.lz.onset for count, c in zip(counts[:-1], cases[:-1], strict=True))
    assert counts[-1] == 0


EACH_PENALTY = (
    Penalties(frequency_penalty=0.7),
    Penalties(presence_penalty=-1.1),
    Penalties(repetition_penalty=1.3),
    Penalties(repetition_penalty=0.8, frequency_penalty=0.5, penalty_last_n=17),
    Penalties(min_new_tokens=25, stops=(7, 8, 9)),
    Penalties(no_repeat_ngram_size=3),
    Penalties(no_repeat_ngram_size=2, no_repeat_ngram_window=30, no_repeat_ngram_whitelist=(5,)),
    Penalties(dry_multiplier=0.8),
    Penalties(dry_multiplier=0.3, dry_allowed_length=1, dry_penalty_last_n=40),
    TOGETHER := Penalties(
        frequency_penalty=0.2,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        min_new_tokens=12,
        no_repeat_ngram_size=4,
        dry_multiplier=0.4,
    ),
)


@pytest.mark.each_kind
@on(*EVERYWHERE)
def test_each_other_penalty(server: Server) -> None:
    """Each penalty over the whole history alone, then all together, and with the LZ penalty."""
    rng = random.Random(f"each {server.config.name}")
    breakers = ("\n", "e", "ing")
    cases = [
        Case(repetitive(rng, 40), 28, temperature=i % 2, penalties=penalties, breakers=breakers)
        for i, penalties in enumerate(EACH_PENALTY)
    ]
    cases.append(replace(cases[-1], lz=Lz(0.3, 64, 16, True, onset=1)))
    for c, sample in zip(cases, run_together(server, cases), strict=True):
        (name, *others) = penalty_fields(replace(c.penalties, stops=()))
        kind = "all" if len(others) > 4 else name
        c.check(server, sample, f"{server.config.name}: {kind}{', LZ' if c.lz.penalty else ''}")


@on(*SCHEDULERS)
def test_first_token_sees_the_prompt(server: Server) -> None:
    """Prefill alone: the first token's logits, the prompt being all of the history."""
    rng = random.Random("prefill")
    cases = [
        replace(case(rng, length, 1), lz=replace(parameters(rng), include_prompt=True))
        for length in (1, 2, 3, 17, 33, 60, 120, 250)
    ]
    check_together(server, cases, f"{server.config.name}: prefill")


@on(*SCHEDULERS, "eagle", "dflash", "dspark")
def test_a_cached_prefix_changes_nothing(server: Server) -> None:
    """The device gets only the uncached suffix of the prompt; the history is all of it."""
    rng = random.Random("prefix cache")
    for lz in (Lz(0.5, 512, 32, True), Lz(0.5, 20, 8, True, "rate"), Lz(0.5)):
        prompt = repetitive(rng, 70)
        first = generate(server, prompt, 16, lz)
        again = generate(server, prompt, 16, lz)
        longer = generate(server, [*prompt, *first.outputs, *prompt[:9]], 16, lz)
        assert first.meta["cached_tokens"] < 16
        assert again.meta["cached_tokens"] >= 48
        assert longer.meta["cached_tokens"] >= 64
        for sample in (first, again, longer):
            check(server, sample, lz, f"{server.config.name}: prefix cache")


@on(*SCHEDULERS)
def test_histories_longer_than_the_window(server: Server) -> None:
    """Positions far beyond the largest window, matches of hundreds of tokens, a cached prefix."""
    rng = random.Random("long")
    block = token_ids(rng, 430)
    prompt = [
        *token_ids(rng, 150),
        *block,
        *token_ids(rng, 300),
        *block,
        *token_ids(rng, 90),
        *block,
    ]
    longest = Lz(0.3, 1024, 1024, True, "rate")
    others = (
        Lz(0.3, 1024, 64, True),
        Lz(0.3, 1000, 7, True, "rate"),
        Lz(0.5, 17, 17, True),
        Lz(0.5),
    )
    for round_ in (longest,), others:
        cases = [Case(prompt, 40, lz, favoured=tuple(block[:4])) for lz in round_]
        samples = check_together(server, cases, f"{server.config.name}: long histories")
    assert all(sample.meta["cached_tokens"] > 1500 for sample in samples)


@on("chunked", "mixed-chunk")
def test_prompts_of_many_chunks(server: Server) -> None:
    """Prompts of many chunks: the tokens sampled by the middle chunks must be forgotten."""
    rng = random.Random("chunks")
    seen = len(server.log())
    cases = [
        replace(case(rng, length, 24), lz=replace(parameters(rng), include_prompt=include))
        for length, include in ((200, True), (90, True), (150, False), (33, True), (60, False))
    ]
    check_together(server, [*cases, case(rng, 40, 30, OFF)], f"{server.config.name}: chunks")
    sizes = [int(size) for size in re.findall(r"#new-token: (\d+)", server.log()[seen:])]
    assert max(sizes) <= 16, "the prompts were not prefilled in chunks of at most 16"


@pytest.mark.each_kind
@on(*SCHEDULERS, "dp-attention", "ngram", "dflash", "dspark")
def test_arrivals_between_two_decodes(server: Server) -> None:
    """Other requests are prefilled while these decode: no step may lose or repeat a token."""
    rng = random.Random(f"arrivals {server.config.name}")
    for new_tokens in (120, 360, 800):  # more, should these end before the others come
        running = mixed(rng, 4, 30, new_tokens)
        arriving = mixed(rng, 10, 40, 12)
        with ThreadPoolExecutor(len(running) + len(arriving)) as pool:
            futures = [pool.submit(c.run, server) for c in running]
            for c in arriving:
                time.sleep(0.05)
                futures.append(pool.submit(c.run, server))
            samples = [future.result() for future in futures]
        first = samples[0].meta
        between = [
            sample
            for sample in samples[len(running) :]
            if first["request_received_ts"]
            < sample.meta["request_received_ts"]
            < first["request_finished_ts"]
        ]
        for c, sample in zip([*running, *arriving], samples, strict=True):
            c.check(server, sample, f"{server.config.name}: arrivals between decodes")
        if len(between) >= 3:
            return
    raise AssertionError("no prefill fell between two decodes: the test saw nothing")


@on("mixed-chunk", "tiny-pool-mixed")
def test_mixed_chunks(server: Server) -> None:
    """Decodes that ride in the batch of another request's chunk.

    Upstream mixes only batches without logprobs, so the sampled tokens must tell: each must be,
    within the tolerance, the most likely one of the row that the contract asks for.
    """
    rng = random.Random(f"mixed chunks {server.config.name}")
    check_greedy(server, [replace(c, temperature=0.0, favoured=()) for c in mixed(rng, 12, 60, 60)])


@on("tiny-pool-mixed")
def test_mixed_chunks_keep_their_room(server: Server) -> None:
    """Decodes beside a long prompt's chunks must not take the slots reserved for the prompt."""
    rng = random.Random("mixed chunks keep their room")
    # Those that ignore the end of sequence are admitted by their exact need.
    decodes = [
        replace(case(rng, 10, 100), temperature=0.0, ignore_eos=False, favoured=(token,))
        for token in token_ids(rng, 5)
    ]
    check_greedy(server, [*decodes, replace(case(rng, 480, 8), temperature=0.0)])


def check_greedy(server: Server, cases: list[Case]) -> None:
    """Send requests at once, without logprobs, and hold their tokens to the contract."""
    seen = len(server.log())
    bodies = [c.body() for c in cases]
    # In one request, so that they are all there and the later ones' chunks meet decodes.
    body = {name: [body[name] for body in bodies] for name in ("input_ids", "sampling_params")}
    answers = [answer["output_ids"] for answer in post_ok(server, "/generate", body)]
    beside = re.findall(r"Prefill batch.*#running-req: ([1-9])", server.log()[seen:])
    assert len(beside) > 10, "no chunk was prefilled beside running requests"
    for c, outputs in zip(cases, answers, strict=True):
        base = base_rows(server, c.prompt, outputs)
        logits_of = c.logits_of(outputs, server.model)
        short = []
        for i, token in enumerate(outputs):
            expected = logits_of(base[i], outputs[:i])
            short.append(float(expected.max() - expected[token]))
        kind = "tokens" if c.penalties == NO_PENALTIES else "tokens, penalties"
        SUMMARY.record(f"{server.config.name}: mixed chunks, {kind}", short)
        assert max(short) <= TOLERANCE, (c, outputs, short)


@on("overlap", "no-overlap", "mixed-chunk", "disaggregated", "eagle-tree", "dflash", "dspark")
@pytest.mark.parametrize("how", ["in_place", "retract"])
def test_pause_and_continue(server: Server, how: str) -> None:
    """Requests wait in their rows, or are thrown out and prefilled anew with their outputs."""
    rng = random.Random(f"pause {how}")
    cases = mixed(rng, 6, 30, 100)
    pauses = []
    with ThreadPoolExecutor(len(cases)) as pool:
        futures = [pool.submit(c.run, server) for c in cases]
        # Longer and longer apart: on any machine one pause finds them running, and all end. A
        # prefill server refuses a request that is thrown out again before it was prefilled again.
        running_seconds = 0.3
        while not all(future.done() for future in futures):
            time.sleep(running_seconds)
            assert post(server, "/pause_generation", {"mode": how}).is_success
            pauses.append(time.time())
            time.sleep(0.1)
            assert post(server, "/continue_generation", {}).is_success
            running_seconds *= 2
        samples = [future.result() for future in futures]
    for c, sample in zip(cases, samples, strict=True):
        c.check(server, sample, f"{server.config.name}: pause, {how}")
    assert any(sample.meta["request_finished_ts"] > pauses[0] for sample in samples)
    if how == "retract":
        assert any(sample.meta["num_retractions"] > 0 for sample in samples)


@on("overlap", "chunked")
def test_prompt_logprobs_are_left_alone(server: Server) -> None:
    """Only sampled positions are penalised: the prompt keeps the logprobs without a penalty."""
    rng = random.Random("prompt logprobs")
    prompt = repetitive(rng, 50)
    for lz in (Lz(1.0, include_prompt=True), Lz(1.0)):
        body = request_body(prompt, 4, lz)
        body |= {"logprob_start_len": 0, "return_flat_raw_top_logprobs": True}
        answer = post_ok(server, "/generate", body)
        check(server, to_sample(prompt, answer), lz, f"{server.config.name}: prompt logprobs asked")
        rows = top_rows(answer["meta_info"], "input")
        difference = np.abs(rows - base_rows(server, prompt[:1], prompt[1:])).max()
        assert difference < TOLERANCE


@on("tiny-pool", "tiny-pool-mixed", "disaggregated")
def test_retraction_and_resume(server: Server) -> None:
    """Requests are thrown out for lack of room and prefilled anew, outputs included."""
    rng = random.Random("retraction")
    penalised = 0
    for _ in range(6):  # who is thrown out depends on who came first
        # Those that ignore the end of sequence are admitted by their exact need, never retracted.
        cases = [
            replace(c, favoured=tuple(token_ids(rng, 5)), ignore_eos=False)
            for c in mixed(rng, 9, 30, 110)
        ]
        for c, sample in zip(cases, run_together(server, cases), strict=True):
            retracted = sample.meta["num_retractions"] > 0
            penalised += retracted and c.lz.penalty > 0
            state = "retracted" if retracted else "beside retracted"
            c.check(server, sample, f"{server.config.name}: {state}")
        if penalised > 1:
            return
    raise AssertionError("too few requests with the penalty were retracted")


@on("overlap", "no-overlap", "mixed-chunk")
@pytest.mark.parametrize("how", ["abort_request", "disconnect"])
def test_rows_of_aborted_requests(server: Server, how: str) -> None:
    """The next owners of an aborted request's rows see nothing of it, penalised or not."""
    rng = random.Random(f"abort {how}")
    # As long as there is room for: none may end by itself before it is aborted.
    victims = [
        replace(case(rng, 40, 440), lz=parameters(rng), temperature=0.0, favoured=())
        for _ in range(16)
    ]
    with contextlib.ExitStack() as stack:
        streams = []
        for i, victim in enumerate(victims):
            body = without_logprobs(victim.body()) | {"rid": f"victim-{how}-{i}"}
            streams.append(lines(stack.enter_context(streaming(server, body))))
        for events in streams:
            for _ in range(3):
                next(events)
        if how == "abort_request":
            for i in range(len(streams)):
                answer = post(server, "/abort_request", {"rid": f"victim-{how}-{i}"})
                assert answer.status_code == 200
            # On a busy machine some may have ended by themselves before they were aborted.
            assert any(b'"abort"' in b"".join(events) for events in streams)
        # else: leaving the block closes the connections half way
    cases = mixed(rng, 16, 30, 24)
    check_together(server, cases, f"{server.config.name}: rows after {how}")


@on("overlap", "no-overlap", "eagle-tree", "dflash", "dspark")
def test_parallel_samples(server: Server) -> None:
    """n > 1: each sample has a history of its own behind the shared prompt."""
    rng = random.Random("n")
    for lz in (Lz(0.5, 512, 32, False), Lz(0.3, 30, 8, True, "rate")):
        favoured = tuple(token_ids(rng, 4))
        c = Case(repetitive(rng, 40), 32, lz, 1.0, favoured, penalties=TOGETHER)
        body = c.body()
        body["sampling_params"]["n"] = 3
        answers = post_ok(server, "/generate", body)
        samples = [to_sample(c.prompt, answer) for answer in answers]
        assert len({tuple(sample.outputs) for sample in samples}) == 3
        for sample in samples:
            c.check(server, sample, f"{server.config.name}: n = 3")


@on("overlap", "no-overlap", "ngram", "dflash", "dspark")
def test_sessions(server: Server) -> None:
    """Each turn's history begins anew, or with all turns when the prompt is included."""
    check_session(server, streaming=False)


@on("overlap", "no-overlap")
def test_streaming_sessions(server: Server) -> None:
    """A streaming session keeps its row from turn to turn."""
    check_session(server, streaming=True)


def check_session(server: Server, *, streaming: bool) -> None:
    """Turns with changing parameters and constraints, other requests between them."""
    mode = f"{server.config.name}: {'streaming session' if streaming else 'session'}"
    rng = random.Random(mode)
    asked = {"capacity_of_str_len": 5000, "streaming": streaming}
    session = post_ok(server, "/open_session", asked)
    context: list[int] = []
    previous = None
    turns = [
        Case([], 20, Lz(0.5)),
        Case([], 20, Lz(0.4, 512, 32, True), penalties=TOGETHER),
        Case([], 20),
        Case([], 20, Lz(0.6, 24, 8, True, "rate"), penalties=TOGETHER),
        Case([], 20, Lz(0.6, 24, 8, False, "rate")),
    ]
    for regex, lz in itertools.product(FINITE, (OFF, Lz(0.5, 512, 32, True))):
        turns.append(Case([], 40, lz, ignore_eos=False, constraint=encodings(regex)))
    for turn in turns:
        appended = repetitive(rng, 14)
        body = replace(turn, prompt=appended).body()
        body["session_params"] = {"id": session, "rid": previous}
        answer = post_ok(server, "/generate", body)
        previous = answer["meta_info"]["id"]
        context = [*context, *appended]
        sample = to_sample(context, answer)
        replace(turn, prompt=context).check(server, sample, mode)
        assert turn.ignore_eos or sample.outputs[-1] in stop_ids()
        context = [*context, *sample.outputs]
        if turn.constraint is None:
            check_together(server, mixed(rng, 3, 20, 8), mode)
    assert post(server, "/close_session", {"session_id": session}).is_success


@on("overlap", "mixed-chunk", "eagle", "dflash", "dspark")
def test_stream(server: Server) -> None:
    """/generate with stream: the same logprobs, chunk by chunk."""
    rng = random.Random("stream")
    for lz in (Lz(0.5), Lz(0.5, 16, 8, True, "rate")):
        sample = stream_sample(server, repetitive(rng, 30), 8, lz)
        check(server, sample, lz, f"{server.config.name}: stream")


MUTATIONS: dict[str, Callable[[list[int], Lz], np.ndarray]] = {
    "one token behind": lambda h, lz: bits(h[:-1], lz),
    "newest token twice": lambda h, lz: bits([*h, *h[-1:]], lz),
    "window one longer": lambda h, lz: bits(h, replace(lz, window=lz.window + 1)),
    "window one shorter": lambda h, lz: bits(h, replace(lz, window=lz.window - 1)),
    "buffer one longer": lambda h, lz: bits(h, replace(lz, buffer=lz.buffer + 1)),
    "wrong sign": lambda h, lz: 2 * np.log2(vocab_size()) - bits(h, lz),
    "newest first": lambda h, lz: bits(h[::-1], lz),
    "the other cost": lambda h, lz: bits(
        h, replace(lz, cost="rate" if lz.cost == "marginal" else "marginal")
    ),
    "no penalty": lambda h, lz: np.full(vocab_size(), np.log2(vocab_size())),
}


@on("overlap")
@pytest.mark.parametrize("cost", ["marginal", "rate"])
def test_the_check_detects_small_errors(server: Server, cost: str) -> None:
    """Each mistake that an implementation could make exceeds the tolerance by far."""
    rng = random.Random("teeth")
    favoured = tuple(token_ids(rng, 3))
    lz = Lz(0.15, 12, 3, True, cost)
    c = Case(repetitive(rng, 30), 64, lz, 1.0, favoured)
    sample = c.run(server)
    base = base_rows(server, sample.prompt, sample.outputs)
    logits_of = c.logits_of(sample.outputs)
    assert max(deviations(sample, base, lz, temperature=1.0, logits_of=logits_of)) < TOLERANCE
    for name, mutated in MUTATIONS.items():
        worst = 0.0
        for i, row in enumerate(sample.rows):
            history = visible_history(sample.prompt, sample.outputs[:i], lz.include_prompt)
            delta = mutated(history, lz)
            expected = log_softmax(c.biased(base[i] + lz.penalty * delta))
            worst = max(worst, float(np.abs(row - expected).max()))
        assert worst > 50 * TOLERANCE, f"{name}: only {worst:.2g} away"
