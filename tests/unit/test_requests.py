"""The functions of the patched request path: admission, refusals, and field forwarding."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.sampling.sampling_params import SamplingParams

from lz_penalty.fields.histories import NEUTRAL, HistoryParams
from lz_penalty.fields.lz import LZParams
from lz_penalty.fields.repetition import RepetitionDetection
from sglang_lz.http import admission
from sglang_lz.startup import server as startup


def admitted(embeds: bool = False, processor: str | None = None, **fields: Any) -> SamplingParams:
    """The sampling parameters of a request as they reach the scheduler."""
    params = SamplingParams(**admission.other_fields(fields))
    admission.admit(
        params,
        fields,
        is_encoder_decoder=False,
        has_input_embeds=embeds,
        custom_logit_processor=processor,
    )
    return params


def admit(**request: Any) -> LZParams | None:
    """The LZ penalty with which a request reaches the scheduler."""
    return admitted(**request).lz_params


@pytest.mark.parametrize(
    ("name", "right"),
    [("lz_penalti", "lz_penalty"), ("LZ-penalty", "lz_penalty"), ("dry_bas", "dry_base")],
)
def test_the_engines_client_is_told_the_nearest_name(name: str, right: str) -> None:
    """As over HTTP; upstream's error would be that of Python."""
    with pytest.raises(ValueError, match=rf"^{name} must be spelt {right} or left out"):
        admission.other_fields({name: 1})


def test_a_backend_that_cannot_end_at_stop_token_ids_refuses_them(
    server_config: dict[str, Any],
) -> None:
    for backend in ("llguidance", "outlines"):
        server_config["grammar_backend"] = backend
        with pytest.raises(ValueError, match=rf"^stop_token_ids must be left out .*{backend}"):
            admitted(regex="a", stop_token_ids=[5])
        admitted(stop_token_ids=[5])
        admitted(regex="a", stop_token_ids=[5], ignore_eos=True)


NGRAM, EAGLE = {"speculative_algorithm": "NGRAM"}, {"speculative_algorithm": "EAGLE"}
DFLASH, SESSIONS = {"speculative_algorithm": "DFLASH"}, {"enable_streaming_session": True}
UNSUPPORTED = [
    ({"speculative_algorithm": "UNO"}, "speculative decoding by UNO"),
    (EAGLE | {"speculative_accept_threshold_single": 0.9}, "not lossless"),
    (NGRAM | {"speculative_accept_threshold_acc": 0.9}, "not lossless"),
    (DFLASH | {"attn_dp_size": 2}, "speculative decoding by DFLASH under data-parallel attention"),
    (NGRAM | SESSIONS, "speculative decoding under --enable-streaming-session"),
    (
        SESSIONS | {"disaggregation_mode": "decode"},
        "decode server under --enable-streaming-session",
    ),
    ({"decoupled_spec_role": "verifier"}, "decoupled speculative decoding"),
    ({"dllm_algorithm": "LowConfidence"}, "diffusion language models"),
    ({"enable_pdmux": True}, "--enable-pdmux"),
    ({"attn_cp_size": 2}, "context parallelism"),
    ({"device": "npu"}, "on device npu"),
    ({"device": "mps"}, "on device mps"),
]


# One request for each penalty over a whole history.
OTHERS = (
    {"frequency_penalty": 0.1},
    {"presence_penalty": -0.1},
    {"repetition_penalty": 1.1},
    {"min_new_tokens": 1},
    {"no_repeat_ngram_size": 3},
    {"dry_multiplier": 0.8},
)


@pytest.mark.parametrize("fields", [{"lz_penalty": 0.15}, *OTHERS], ids=str)
@pytest.mark.parametrize(("mode", "why"), UNSUPPORTED)
def test_unsupported_modes_refuse_every_penalty(
    server_config: dict[str, Any], mode: dict[str, Any], why: str, fields: dict[str, Any]
) -> None:
    (name,) = fields
    server_config.update(mode)
    with pytest.raises(ValueError, match=rf"^{name} must be [01] .*got {fields[name]}") as caught:
        admitted(**fields)
    assert why in str(caught.value)
    neutral = admitted(**{"lz_penalty": 0, "lz_window_size": 8, name: NEUTRAL.get(name, 0)})
    assert (neutral.lz_params, neutral.history_params) == (None, None)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        *UNSUPPORTED,
        ({"skip_tokenizer_init": True}, "--skip-tokenizer-init"),
        ({"grammar_backend": "outlines"}, "--grammar-backend outlines"),
        ({"grammar_backend": "llguidance"}, "--grammar-backend llguidance"),
    ],
)
def test_unsupported_modes_refuse_proper_tokens(
    server_config: dict[str, Any], mode: dict[str, Any], why: str
) -> None:
    server_config |= mode
    with pytest.raises(ValueError, match=r"^proper_tokens must be false .*got true") as caught:
        admitted(proper_tokens=True)
    assert why in str(caught.value)
    assert admitted(proper_tokens=False).proper_tokens is False
    server_config["preferred_sampling_params"] = {"proper_tokens": True}
    with pytest.raises(ValueError, match="from the server's --preferred-sampling-params"):
        admitted()
    assert admitted(proper_tokens=False).regex is None


def test_a_tokenizer_without_a_file_has_no_proper_tokens(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tokenizer, got true: .* NoneType has no tok"):
        admitted(proper_tokens=True)


def test_our_other_fields_are_admitted(server_config: dict[str, Any]) -> None:
    assert admitted().history_params is None
    assert admitted(frequency_penalty=1.0, min_new_tokens=3).history_params is None
    assert admitted(dry_multiplier=1, dry_sequence_breakers=["a"]).history_params == HistoryParams(
        dry_multiplier=1.0, dry_sequence_breakers=("a",)
    )
    server_config["preferred_sampling_params"] = {"no_repeat_ngram_size": 4}
    assert admitted().history_params == HistoryParams(no_repeat_ngram_size=4)
    assert admitted(no_repeat_ngram_size=0).history_params is None
    assert admitted(max_new_tokens=0).history_params is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("penalty_last_n", -2),
        ("penalty_last_n", 1.5),
        ("no_repeat_ngram_size", True),
        ("no_repeat_ngram_window", "90"),
        ("no_repeat_ngram_whitelist", 3),
        ("no_repeat_ngram_whitelist", [-1]),
        ("no_repeat_ngram_whitelist", list(range(1025))),
        ("dry_multiplier", float("nan")),
        ("dry_multiplier", -0.1),
        ("dry_base", 0.9),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", "abc"),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", ["a" * 41]),
        ("dry_sequence_breakers", ["a" * 40, "b" * 40]),
        ("dry_sequence_breakers", ["\ud800"]),
    ],
)
def test_a_wrong_value_of_another_field_is_named(
    server_config: dict[str, Any], field: str, value: object
) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be .*, got ") as caught:
        admitted(**{field: value})
    assert caught.value.field == field


def test_breakers_need_a_tokenizer(server_config: dict[str, Any]) -> None:
    server_config["skip_tokenizer_init"] = True
    with pytest.raises(ValueError, match="dry_sequence_breakers on a server with --skip-tokenizer"):
        admitted(dry_multiplier=1)
    assert admitted(dry_multiplier=1, dry_sequence_breakers=[]).history_params is not None


@pytest.mark.parametrize(
    ("algorithm", "takes_min_p", "takes_processor"),
    [(None, True, True), ("EAGLE", True, False), ("NGRAM", True, False),
     ("DFLASH", True, True), ("DSPARK", True, True), ("UNO", False, False)],
)  # fmt: skip
def test_fields_that_verification_ignores_are_refused(
    server_config: dict[str, Any], algorithm: str | None, takes_min_p: bool, takes_processor: bool
) -> None:
    server_config["speculative_algorithm"] = algorithm
    for taken, request in ((takes_min_p, {"min_p": 0.1}), (takes_processor, {"processor": "{}"})):
        if taken:
            admitted(**request)
        else:
            with pytest.raises(ValueError, match=f"must be left out .* by {algorithm}, which igno"):
                admitted(**request)


@pytest.mark.parametrize("algorithm", [None, "DFLASH", "DSPARK"])
@pytest.mark.parametrize("fields", [{}, {"lz_penalty": 0.5}, {"frequency_penalty": 0.5}])
def test_a_processor_that_runs_early_excludes_penalties(
    server_config: dict[str, Any], algorithm: str | None, fields: dict[str, float]
) -> None:
    server_config["speculative_algorithm"] = algorithm
    if algorithm is None or not fields:
        admitted(processor="{}", **fields)
        return
    with pytest.raises(ValueError, match=f"must be left out beside a penalty .* by {algorithm}"):
        admitted(processor="{}", **fields)


@pytest.mark.parametrize("algorithm", [None, "EAGLE"])
def test_deterministic_inference_refuses_min_p(
    server_config: dict[str, Any], algorithm: str | None
) -> None:
    server_config["enable_deterministic_inference"] = True
    server_config["speculative_algorithm"] = algorithm
    assert admitted().min_p == 0
    with pytest.raises(ValueError, match="min_p must be left out with --enable-deterministic-inf"):
        admitted(min_p=0.1)


WRONG_NUMBERS = [
    *(("repetition_penalty", value) for value in (1e-45, 1e-38, 0, 0.0099, -1, 2.1, 10**400)),
    *(("temperature", value) for value in (-1e-9, 1e31, 1e39, float("inf"), float("nan"), 10**400)),
    *(("top_p", value) for value in (1e-45, 0, 1.1, float("nan"), True)),
    *(("min_p", value) for value in (-1e-45, 1.1, float("nan"))),
    *(("frequency_penalty", value) for value in (2.1, -1e39, float("nan"))),
    *(("presence_penalty", value) for value in (-2.1, 1e39, float("-inf"))),
    *(
        ("logit_bias", {"3": value})
        for value in (1e30, -1e38, 1e39, float("inf"), float("nan"), None, "1", 10**400)
    ),
]


@pytest.mark.parametrize(("name", "value"), WRONG_NUMBERS, ids=str)
def test_numbers_that_leave_nothing_to_sample_are_refused(
    server_config: dict[str, Any], name: str, value: Any
) -> None:
    """In float32 they become 0, infinite or NaN on the way to probabilities."""
    with pytest.raises(ValueError, match=rf"^{name} must .* a finite number in \[.*\], got "):
        admitted(**{name: value})


LOOP = {"max_pattern_size": 64, "min_count": 8}
UNGUARDED = [
    ({"decoupled_spec_role": "verifier"}, "decoupled speculative decoding"),
    ({"dllm_algorithm": "LowConfidence"}, "diffusion language models"),
]


def detected(**params: Any) -> RepetitionDetection | None:
    """What the scheduler gets of a request's `repetition_detection`."""
    found: RepetitionDetection | None = admitted(**params).repetition_detection
    return found


def test_a_preferred_loop_guard_is_a_default(server_config: dict[str, Any]) -> None:
    assert detected() is None
    assert detected(repetition_detection=LOOP) == RepetitionDetection(64, 0, 8)
    server_config["preferred_sampling_params"] = {"repetition_detection": LOOP}
    assert detected() == detected(repetition_detection=None) == RepetitionDetection(64, 0, 8)
    assert detected(repetition_detection={"max_pattern_size": 0}) is None
    with pytest.raises(ValueError, match=r"from the server's --preferred-sampling-params: it is n"):
        detected(beam_width=2)


@pytest.mark.parametrize(("mode", "why"), UNGUARDED)
def test_modes_without_a_guard_refuse_it_only(
    server_config: dict[str, Any], mode: dict[str, Any], why: str
) -> None:
    server_config.update(mode)
    with pytest.raises(ValueError, match=why) as caught:
        detected(repetition_detection=LOOP)
    assert str(caught.value).startswith("repetition_detection must be left out")
    assert detected() is None


def test_numbers_are_ignored_only_with_a_tokenizer(server_config: dict[str, Any]) -> None:
    ignores = {"repetition_detection": {**LOOP, "ignore_numbers": True}}
    assert detected(**ignores) == RepetitionDetection(64, 0, 8, ignore_numbers=True)
    server_config["skip_tokenizer_init"] = True
    with pytest.raises(
        ValueError, match=r"^repetition_detection\.ignore_numbers must be false on "
    ):
        detected(**ignores)
    assert detected(repetition_detection=LOOP)


def test_thinking_ends_only_where_it_can(server_config: dict[str, Any]) -> None:
    ends = {"repetition_detection": {**LOOP, "action": "end_thinking"}}
    with pytest.raises(ValueError, match="without --reasoning-parser"):
        detected(**ends)
    server_config["reasoning_parser"] = "qwen3"
    assert detected(**ends) == RepetitionDetection(64, 0, 8, "end_thinking")
    server_config["skip_tokenizer_init"] = True
    with pytest.raises(ValueError, match="with --skip-tokenizer-init"):
        detected(**ends)
    server_config |= {"skip_tokenizer_init": False, "grammar_backend": "llguidance"}
    with pytest.raises(ValueError, match="without --grammar-backend xgrammar"):
        detected(**ends)
    assert detected(repetition_detection=LOOP)


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [
        ("EAGLE", "SGLANG_SIMULATE_ACC_LEN", 2.5),
        ("DSPARK", "SGLANG_RAGGED_VERIFY_MODE", "cap-accept"),
        ("DSPARK", "SGLANG_RAGGED_VERIFY_MODE", "compact"),
    ],
)
def test_verification_that_is_not_whole_refuses_the_penalty(
    server_config: dict[str, Any], algorithm: str, name: str, value: object
) -> None:
    from sglang.srt.environ import envs

    server_config["speculative_algorithm"] = algorithm
    with getattr(envs, name).override(value), pytest.raises(ValueError, match=name):
        admit(lz_penalty=0.15)
    assert admit(lz_penalty=0.15) == LZParams(0.15)


@pytest.mark.parametrize(
    "fields",
    [{"lz_penalty": 0.15}, {"proper_tokens": True}, {"repetition_detection": LOOP}],
    ids=str,
)
def test_beam_search_refuses_our_fields(
    server_config: dict[str, Any], fields: dict[str, Any]
) -> None:
    (name,) = fields
    with pytest.raises(ValueError, match=f"^{name} must be .* with beam search"):
        admitted(beam_width=2, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        *({"repetition_penalty": 1.1}, {"no_repeat_ngram_size": 2}, {"dry_multiplier": 1}),
        {"lz_penalty": 0.15, "lz_include_prompt": True},
    ],
    ids=str,
)
def test_prompts_without_token_ids_have_no_penalty_that_sees_them(
    server_config: dict[str, Any], fields: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="input_embeds, which have no token ids"):
        admitted(embeds=True, **fields)
    assert admit(embeds=True, lz_penalty=0.15, frequency_penalty=1.0) == LZParams(0.15)


def test_the_server_maximum_bounds_the_window(server_config: dict[str, Any]) -> None:
    server_config["lz_max_window_size"] = 16
    assert admit(lz_penalty=0.15) == LZParams(0.15, 16, 16)
    with pytest.raises(ValueError, match=r"\[1, 16\]"):
        admit(lz_window_size=17)


@pytest.mark.parametrize(
    ("preferred", "fields", "sizes"),
    [
        ({"lz_buffer_size": 64}, {"lz_window_size": 16}, (16, 16)),
        ({"lz_buffer_size": 64, "lz_window_size": 100}, {"lz_window_size": 32}, (32, 32)),
        ({"lz_buffer_size": 64, "lz_window_size": 100}, {}, (100, 64)),
        ({"lz_buffer_size": 64}, {"lz_window_size": 16, "lz_buffer_size": 4}, (16, 4)),
        ({}, {"lz_window_size": 16}, (16, 16)),
    ],
)
def test_a_preferred_buffer_fits_the_requests_window(
    server_config: dict[str, Any],
    preferred: dict[str, int],
    fields: dict[str, int],
    sizes: tuple[int, int],
) -> None:
    """A client is not refused for a field that it did not send."""
    server_config["preferred_sampling_params"] = preferred
    assert admit(lz_penalty=0.15, **fields) == LZParams(0.15, *sizes)


def test_nothing_generated_has_no_preferred_penalty(server_config: dict[str, Any]) -> None:
    server_config["preferred_sampling_params"] = {"lz_penalty": 0.5, "lz_include_prompt": True}
    assert admit(max_new_tokens=0) is None
    assert admit(max_new_tokens=1) == LZParams(0.5, include_prompt=True)
    with pytest.raises(ValueError, match=r"where nothing is generated.*got 0\.25:"):
        admit(max_new_tokens=0, lz_penalty=0.25)
    server_config["allow_auto_truncate"] = True  # then it is perhaps not the client's 0
    assert admit(max_new_tokens=0, lz_penalty=0.25) is None


def test_unset_fields_are_not_forwarded() -> None:
    """A null would override the server's preferred sampling parameters."""
    assert admission.given_fields(vars(admission.RequestFields())) == {}
    given = admission.RequestFields(lz_penalty=0.2, lz_include_prompt=False)
    assert admission.given_fields(vars(given)) == {"lz_penalty": 0.2, "lz_include_prompt": False}


PREFERRED = "--preferred-sampling-params: "


def preferred(**fields: Any) -> dict[str, Any]:
    return {"preferred_sampling_params": fields}


# What a server is started with, and the sentence that stops it.
WRONG_SERVERS: list[tuple[dict[str, Any], str]] = [
    ({"constrained_json_max_whitespace_cnt": 0}, "--constrained-json-max-whitespace-cnt must be"),
    *(
        ({"lz_max_window_size": size}, r"--lz-max-window-size must be an integer in \[1, 8192\]")
        for size in (0, -1, 8193, True, "512", 512.0, None)
    ),
    ({"lz_history_memory": 0}, r"--lz-history-memory must be an integer in \[1, 8191\] \(MiB\)"),
    ({"smg_grpc_mode": True}, "--smg-grpc-mode must be off"),
    ({"device": "cpu", "enable_multi_layer_eagle": True}, "--enable-multi-layer-eagle must be off"),
    *(
        ({"lz_observe_loops": share}, r"--lz-observe-loops must be a number in \[0, 1\]")
        for share in (-0.1, 1.1, float("nan"), True, "1")
    ),
    ({"lz_observe_loops": 0.5}, r"--lz-observe-loops must be 0 without --enable-metrics, got 0\.5"),
    *(
        ({"lz_loop_finish_reason": reason}, "--lz-loop-finish-reason must be one of rep")
        for reason in ("abort", "", None, ["stop"])
    ),
    (preferred(lz_penalty=11), f"{PREFERRED}lz_penalty must be"),
    ({"preferred_sampling_params": '{"lz_penalty": 11}'}, f"{PREFERRED}lz_penalty must be"),
    (preferred(lz_penalti=0.5), f"{PREFERRED}lz_penalti must be sp"),
    (
        {"speculative_algorithm": "UNO", **preferred(lz_penalty=0.15)},
        f"{PREFERRED}lz_penalty .*speculative decoding",
    ),
    (
        {"attn_cp_size": 2, **preferred(lz_penalty=0.15)},
        f"{PREFERRED}lz_penalty .*context parallelism",
    ),
    *(
        (preferred(repetition_detection=LOOP | wrong), f"{PREFERRED}repetition_")
        for wrong in ({"action": "end_thinking"}, {"min_count": 1})
    ),
    (preferred(n=2), f"{PREFERRED}n must be left out, got 2"),
    (preferred(beam_width=2, lz_penalty=0), f"{PREFERRED}beam_width must be left out, got 2"),
    (preferred(max_tokens=9), f"{PREFERRED}.*unknown field `max_tokens`"),
    (preferred(frequency_penalty="much"), f"{PREFERRED}.*string .much., expected"),
    (preferred(LZ_penalty=0.5), f"{PREFERRED}LZ_penalty must be spelt lz_penalty"),
]
RIGHT_SERVERS: list[dict[str, Any]] = [
    {},
    {"enable_multi_layer_eagle": True},
    {"speculative_algorithm": "UNO"},
    {"attn_cp_size": 2},
    preferred(repetition_detection=LOOP),
    *({"lz_loop_finish_reason": reason} for reason in ("repetition", "stop", "length")),
    {"lz_observe_loops": 0.5, "enable_metrics": True},
]


@pytest.fixture
def start(
    server_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], None]:
    """Checks a server of a whole installation with these arguments."""
    monkeypatch.setattr(startup, "verify_imported", lambda sglang: [])

    def check(changes: dict[str, Any]) -> None:
        server_config.update(changes)
        startup.check_server(SimpleNamespace(**{"smg_grpc_mode": False, **server_config}))

    return check


@pytest.mark.parametrize("changes", RIGHT_SERVERS, ids=str)
def test_a_server_starts(start: Callable[[dict[str, Any]], None], changes: dict[str, Any]) -> None:
    start(changes)


@pytest.mark.parametrize(("changes", "sentence"), WRONG_SERVERS, ids=str)
def test_a_wrong_server_does_not_start(
    start: Callable[[dict[str, Any]], None], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        start(changes)


def test_a_server_that_is_not_whole_does_not_start(
    start: Callable[[dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(startup.hooks, "missing", lambda: ["x.sample does not call ours"])
        with pytest.raises(ValueError, match=r"x\.sample does not call ours, so lz_penalty would"):
            start({})
    with monkeypatch.context() as patch:
        patch.setenv("SGLANG_RUST_SERVER", "1")
        with pytest.raises(ValueError, match="SGLANG_RUST_SERVER"):
            start({})
    monkeypatch.setattr(startup, "verify_imported", lambda sglang: ["sglang/a.py changed"])
    with pytest.raises(ValueError, match=r"sglang/a\.py changed.*doctor"):
        start({})
