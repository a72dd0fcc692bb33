"""The functions of the patched request path: admission, refusals, and field forwarding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_lz import admission, startup
from sglang_lz.fields.histories import NEUTRAL, HistoryParams
from sglang_lz.fields.lz import LZParams
from sglang_lz.fields.refusal import Refusal
from sglang_lz.fields.repetition import RepetitionDetection


def admitted(
    model_is_encoder_decoder: bool = False,
    embeds: bool = False,
    processor: str | None = None,
    **fields: Any,
) -> SamplingParams:
    """The sampling parameters of a request as they reach the scheduler."""
    params = SamplingParams(**admission.other_fields(fields))
    admission.admit(
        params,
        fields,
        is_encoder_decoder=model_is_encoder_decoder,
        has_input_embeds=embeds,
        custom_logit_processor=processor,
    )
    return params


def admit(**request: Any) -> LZParams | None:
    """The LZ penalty with which a request reaches the scheduler."""
    return admitted(**request).lz_params


def test_admission_resolves_the_defaults(server_config: dict[str, Any]) -> None:
    assert admit(lz_penalty=1) == LZParams(1.0, 512, 32, False, "marginal")
    assert admit(lz_penalty=1, lz_cost="rate") == LZParams(1.0, cost="rate")


@pytest.mark.parametrize("fields", [{}, {"lz_penalty": 0}, {"lz_penalty": 0, "lz_onset": 3}])
def test_without_a_penalty_the_scheduler_gets_none(
    server_config: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert admit(**fields) is None


@pytest.mark.parametrize(
    ("name", "right"),
    [("lz_penalti", "lz_penalty"), ("LZ-penalty", "lz_penalty"), ("dry_bas", "dry_base")],
)
def test_the_engines_client_is_told_the_nearest_name(name: str, right: str) -> None:
    """As over HTTP; upstream's error would be that of Python."""
    with pytest.raises(ValueError, match=rf"^{name} must be spelt {right} or left out"):
        admission.other_fields({name: 1})


def test_a_modifier_without_its_main_field_is_refused(server_config: dict[str, Any]) -> None:
    """tests/patches/test_gate.py has all of them, over HTTP."""
    with pytest.raises(ValueError, match=r"^lz_onset needs lz_penalty > 0, got 3 without it"):
        admitted(lz_onset=3)
    server_config["preferred_sampling_params"] = {"lz_penalty": 0.15}
    assert admit(lz_onset=3.0) == LZParams(0.15, onset=3)


def test_a_backend_that_cannot_end_at_stop_token_ids_refuses_them(
    server_config: dict[str, Any],
) -> None:
    for backend in ("llguidance", "outlines"):
        server_config["grammar_backend"] = backend
        with pytest.raises(ValueError, match=rf"^stop_token_ids must be left out .*{backend}"):
            admitted(regex="a", stop_token_ids=[5])
        admitted(stop_token_ids=[5])
        admitted(regex="a", stop_token_ids=[5], ignore_eos=True)


def test_the_schedulers_own_field_is_not_a_requests(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^lz_params must be spelt"):
        admit(lz_params={"penalty": 1})


UNSUPPORTED = [
    ({"speculative_algorithm": "UNO"}, "speculative decoding by UNO"),
    (
        {"speculative_algorithm": "EAGLE", "speculative_accept_threshold_single": 0.9},
        "not lossless",
    ),
    (
        {"speculative_algorithm": "NGRAM", "speculative_accept_threshold_acc": 0.9},
        "not lossless",
    ),
    (
        {"speculative_algorithm": "DFLASH", "attn_dp_size": 2},
        "speculative decoding by DFLASH under data-parallel attention",
    ),
    (
        {"speculative_algorithm": "NGRAM", "enable_streaming_session": True},
        "speculative decoding under --enable-streaming-session",
    ),
    (
        {"disaggregation_mode": "decode", "enable_streaming_session": True},
        "decode server under --enable-streaming-session",
    ),
    ({"decoupled_spec_role": "verifier"}, "decoupled speculative decoding"),
    ({"dllm_algorithm": "LowConfidence"}, "diffusion language models"),
    ({"enable_pdmux": True}, "--enable-pdmux"),
    ({"attn_cp_size": 2}, "context parallelism"),
    ({"device": "npu"}, "on device npu"),
    ({"device": "mps"}, "on device mps"),
]


@pytest.mark.parametrize(("mode", "why"), UNSUPPORTED)
def test_unsupported_modes_refuse_only_the_penalty(
    server_config: dict[str, Any], mode: dict[str, Any], why: str
) -> None:
    server_config.update(mode)
    with pytest.raises(ValueError, match=r"^lz_penalty must be 0 .*got 0\.15") as caught:
        admit(lz_penalty=0.15)
    assert why in str(caught.value)
    assert admit(lz_penalty=0, lz_window_size=8) is None


# One request for each penalty over a whole history.
OTHERS = (
    {"frequency_penalty": 0.1},
    {"presence_penalty": -0.1},
    {"repetition_penalty": 1.1},
    {"min_new_tokens": 1},
    {"no_repeat_ngram_size": 3},
    {"dry_multiplier": 0.8},
)


@pytest.mark.parametrize("fields", OTHERS, ids=str)
@pytest.mark.parametrize(("mode", "why"), UNSUPPORTED)
def test_unsupported_modes_refuse_every_other_penalty(
    server_config: dict[str, Any], mode: dict[str, Any], why: str, fields: dict[str, Any]
) -> None:
    (name,) = fields
    server_config.update(mode)
    with pytest.raises(ValueError, match=rf"^{name} must be [01] .*got {fields[name]}") as caught:
        admitted(**fields)
    assert why in str(caught.value)
    assert admitted(**{name: NEUTRAL[name]}).history_params is None


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
    server_config |= {"skip_tokenizer_init": False, **mode}
    with pytest.raises(ValueError, match=r"^proper_tokens must be false .*got true") as caught:
        admitted(proper_tokens=True)
    assert why in str(caught.value)
    assert admitted(proper_tokens=False).proper_tokens is False
    server_config["preferred_sampling_params"] = {"proper_tokens": True}
    with pytest.raises(ValueError, match="from the server's --preferred-sampling-params"):
        admitted()
    assert admitted(proper_tokens=False).regex is None


@pytest.mark.parametrize("fields", [{"beam_width": 2}], ids=str)
def test_requests_that_cannot_have_proper_tokens_are_refused(
    server_config: dict[str, Any], fields: dict[str, Any]
) -> None:
    server_config["skip_tokenizer_init"] = False
    with pytest.raises(ValueError, match=r"^proper_tokens must be false with beam"):
        admitted(proper_tokens=True, **fields)


def test_every_refusal_is_worded_alike() -> None:
    refusal = Refusal("repetition_detection.action", '"stop"', "on a toaster", "it is too hot")
    error = refusal.error({"action": "end_thinking"}, is_preferred=True)
    assert error.field == "repetition_detection"
    assert str(error) == (
        'repetition_detection.action must be "stop" on a toaster, got '
        "{'action': 'end_thinking'} from the server's --preferred-sampling-params: it is too hot."
    )
    assert str(Refusal("proper_tokens", "false", "on a toaster").error(True)) == (
        "proper_tokens must be false on a toaster, got true: it is not exact there."
    )


def test_a_tokenizer_without_a_file_has_no_proper_tokens(server_config: dict[str, Any]) -> None:
    server_config["skip_tokenizer_init"] = False
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


def test_prompts_without_token_ids_have_no_penalty_that_sees_them(
    server_config: dict[str, Any],
) -> None:
    for fields in ({"repetition_penalty": 1.1}, {"no_repeat_ngram_size": 2}, {"dry_multiplier": 1}):
        with pytest.raises(ValueError, match="on input_embeds, which have no token ids"):
            admitted(embeds=True, **fields)
    admitted(embeds=True, frequency_penalty=1.0)


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
    server_config: dict[str, Any],
    algorithm: str | None,
    takes_min_p: bool,
    takes_processor: bool,
) -> None:
    server_config["speculative_algorithm"] = algorithm
    for taken, request in (
        (takes_min_p, {"min_p": 0.1}),
        (takes_processor, {"processor": "{}"}),
    ):
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


def test_a_loop_guard_is_admitted(server_config: dict[str, Any]) -> None:
    assert detected() is None
    assert detected(repetition_detection={}) is None
    assert detected(repetition_detection=LOOP) == RepetitionDetection(64, 0, 8)
    with pytest.raises(ValueError, match=r"^repetition_detection must be an object, got 3\.$"):
        detected(repetition_detection=3)
    with pytest.raises(ValueError, match="beam search"):
        detected(repetition_detection=LOOP, beam_width=2)


def test_a_preferred_loop_guard_is_a_default(server_config: dict[str, Any]) -> None:
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


def test_simulated_acceptance_refuses_the_penalty(server_config: dict[str, Any]) -> None:
    from sglang.srt.environ import envs

    server_config["speculative_algorithm"] = "EAGLE"
    with (
        envs.SGLANG_SIMULATE_ACC_LEN.override(2.5),
        pytest.raises(ValueError, match="SGLANG_SIMULATE_ACC_LEN"),
    ):
        admit(lz_penalty=0.15)
    assert admit(lz_penalty=0.15) == LZParams(0.15)


def test_partly_verified_blocks_refuse_the_penalty(server_config: dict[str, Any]) -> None:
    from sglang.srt.environ import envs

    server_config["speculative_algorithm"] = "DSPARK"
    for mode in ("cap-accept", "compact"):
        with (
            envs.SGLANG_RAGGED_VERIFY_MODE.override(mode),
            pytest.raises(ValueError, match="SGLANG_RAGGED_VERIFY_MODE"),
        ):
            admit(lz_penalty=0.15)
    assert admit(lz_penalty=0.15) == LZParams(0.15)


def test_beam_search_refuses_the_penalty(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="beam search"):
        admit(lz_penalty=0.15, beam_width=2)
    assert admit(lz_penalty=0.15, beam_width=1) == LZParams(0.15)


def test_prompts_without_token_ids_cannot_be_included(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="input_embeds"):
        admit(lz_penalty=0.15, lz_include_prompt=True, embeds=True)
    assert admit(lz_penalty=0.15, embeds=True) == LZParams(0.15)


def test_encoder_decoder_models_refuse_the_penalty(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="encoder-decoder"):
        admit(lz_penalty=0.15, model_is_encoder_decoder=True)


def test_the_server_maximum_bounds_the_window(server_config: dict[str, Any]) -> None:
    server_config["lz_max_window_size"] = 16
    assert admit(lz_penalty=0.15) == LZParams(0.15, 16, 16)
    with pytest.raises(ValueError, match=r"\[1, 16\]"):
        admit(lz_window_size=17)


def test_generate_bodies_reach_upstreams_schema_without_our_fields() -> None:
    params = {"temperature": 0, "lz_penalty": 1, "lz_cost": "rate"}
    for body in ({}, {"text": "a"}, {"sampling_params": None}, "no object", {"sampling_params": 3}):
        assert admission.without_our_fields(body) == body
    one = {"text": "a", "sampling_params": params}
    assert admission.without_our_fields(one)["sampling_params"] == {"temperature": 0}
    assert one["sampling_params"] is params
    assert len(params) == 3
    many = {"sampling_params": [params, {"top_p": 1}]}
    assert admission.without_our_fields(many)["sampling_params"] == [
        {"temperature": 0},
        {"top_p": 1},
    ]


def test_preferred_parameters_are_defaults(server_config: dict[str, Any]) -> None:
    server_config["preferred_sampling_params"] = {"lz_window_size": 8}
    with pytest.raises(ValueError, match=r"\[1, 8\]"):
        admit(lz_buffer_size=9)


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


def test_null_takes_the_preferred_value_and_a_zero_does_not(server_config: dict[str, Any]) -> None:
    server_config["preferred_sampling_params"] = {"lz_penalty": 0.5, "lz_cost": "rate"}
    nulls = dict.fromkeys(admission.FIELDS)
    assert admit(**nulls) == LZParams(0.5, cost="rate")
    assert admit(lz_cost="marginal") == LZParams(0.5, cost="marginal")
    assert admit(lz_penalty=0) is None


def test_unset_fields_are_not_forwarded() -> None:
    """A null would override the server's preferred sampling parameters."""
    assert admission.given_fields(vars(admission.RequestFields())) == {}
    given = admission.RequestFields(lz_penalty=0.2, lz_include_prompt=False)
    assert admission.given_fields(vars(given)) == {"lz_penalty": 0.2, "lz_include_prompt": False}


@pytest.fixture
def config(server_config: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(smg_grpc_mode=False, **server_config)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "verify_imported", lambda sglang: [])


@pytest.mark.usefixtures("whole")
class TestStartup:
    def test_a_good_server_starts(self, config: SimpleNamespace) -> None:
        startup.check_server(config)

    def test_whitespace_that_no_schema_can_have_stops_it(self, config: SimpleNamespace) -> None:
        config.constrained_json_max_whitespace_cnt = 0
        with pytest.raises(ValueError, match=r"^--constrained-json-max-whitespace-cnt must be"):
            startup.check_server(config)

    @pytest.mark.parametrize("preferred", [{"lz_penalty": 11}, '{"lz_penalty": 11}'])
    def test_wrong_preferred_parameters_stop_it(
        self, config: SimpleNamespace, preferred: object
    ) -> None:
        config.preferred_sampling_params = preferred
        with pytest.raises(ValueError, match=r"^--preferred-sampling-params: lz_penalty must be"):
            startup.check_server(config)

    @pytest.mark.parametrize(
        ("setting", "value", "why"),
        [
            ("speculative_algorithm", "UNO", "speculative decoding"),
            ("attn_cp_size", 2, "context parallelism"),
        ],
    )
    def test_a_preferred_penalty_stops_a_mode_that_would_refuse_every_request(
        self, config: SimpleNamespace, setting: str, value: object, why: str
    ) -> None:
        setattr(config, setting, value)
        startup.check_server(config)
        config.preferred_sampling_params = {"lz_penalty": 0.15}
        with pytest.raises(ValueError, match=r"^--preferred-sampling-params: lz_penalty") as caught:
            startup.check_server(config)
        assert why in str(caught.value)

    def test_a_preferred_guard_that_would_be_refused_stops_it(
        self, config: SimpleNamespace
    ) -> None:
        config.preferred_sampling_params = {"repetition_detection": LOOP}
        startup.check_server(config)
        for wrong in ({**LOOP, "action": "end_thinking"}, {**LOOP, "min_count": 1}):
            config.preferred_sampling_params = {"repetition_detection": wrong}
            with pytest.raises(ValueError, match=r"^--preferred-sampling-params: repetition_"):
                startup.check_server(config)

    @pytest.mark.parametrize("share", [-0.1, 1.1, True, "1"])
    def test_a_wrong_share_stops_it(self, config: SimpleNamespace, share: object) -> None:
        config.lz_observe_loops = share
        with pytest.raises(ValueError, match=r"^--lz-observe-loops must be a number in \[0, 1\]"):
            startup.check_server(config)

    def test_a_finish_reason_that_no_client_knows_stops_it(self, config: SimpleNamespace) -> None:
        for reason in ("repetition", "stop", "length"):
            config.lz_loop_finish_reason = reason
            startup.check_server(config)
        for wrong in ("abort", "", None, ["stop"]):
            config.lz_loop_finish_reason = wrong
            with pytest.raises(ValueError, match=r"^--lz-loop-finish-reason must be one of rep"):
                startup.check_server(config)

    def test_a_wrong_maximum_stops_it(self, config: SimpleNamespace) -> None:
        config.lz_max_window_size = 0
        with pytest.raises(ValueError, match="--lz-max-window-size"):
            startup.check_server(config)

    def test_misspelt_preferred_parameters_stop_it(self, config: SimpleNamespace) -> None:
        config.preferred_sampling_params = {"lz_penalti": 0.5}
        with pytest.raises(
            ValueError, match=r"^--preferred-sampling-params: lz_penalti must be sp"
        ):
            startup.check_server(config)

    @pytest.mark.parametrize(
        ("preferred", "problem"),
        [
            ({"n": 2}, "n must be left out, got 2"),
            ({"beam_width": 2, "lz_penalty": 0}, "beam_width must be left out, got 2"),
            ({"max_tokens": 9}, "unknown field `max_tokens`"),
            ({"frequency_penalty": "much"}, "string .much., expected"),
            ({"LZ_penalty": 0.5}, "LZ_penalty must be spelt lz_penalty"),
        ],
    )
    def test_preferred_parameters_without_effect_stop_it(
        self, config: SimpleNamespace, preferred: dict[str, Any], problem: str
    ) -> None:
        config.preferred_sampling_params = preferred
        with pytest.raises(ValueError, match=rf"^--preferred-sampling-params: .*{problem}"):
            startup.check_server(config)

    def test_a_hook_that_is_gone_stops_it(
        self, config: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(startup.hooks, "missing", lambda: ["x.sample does not call ours"])
        with pytest.raises(ValueError, match=r"x\.sample does not call ours, so lz_penalty would"):
            startup.check_server(config)

    def test_grpc_stops_it(self, config: SimpleNamespace) -> None:
        config.smg_grpc_mode = True
        with pytest.raises(ValueError, match="--smg-grpc-mode must be off"):
            startup.check_server(config)

    def test_the_compiled_server_stops_it(
        self, config: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
        with pytest.raises(ValueError, match="SGLANG_RUST_SERVER"):
            startup.check_server(config)

    def test_a_damaged_installation_stops_it(
        self, config: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(startup, "verify_imported", lambda sglang: ["sglang/a.py changed"])
        with pytest.raises(ValueError, match=r"sglang/a\.py changed.*doctor"):
            startup.check_server(config)
