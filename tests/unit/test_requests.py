"""What the patched request path calls: admission, refusals, and field forwarding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_lz import requests, startup
from sglang_lz.dist import seal


def admit(model_is_encoder_decoder: bool = False, embeds: bool = False, **fields: Any) -> Any:
    params = SamplingParams(**fields)
    requests.admit(params, is_encoder_decoder=model_is_encoder_decoder, has_input_embeds=embeds)
    return params


def test_admission_resolves_the_defaults(server_config: dict[str, Any]) -> None:
    params = admit(lz_penalty=1)
    assert [getattr(params, name) for name in requests.FIELDS] == [1.0, 512, 32, False, "marginal"]


UNSUPPORTED = [
    ({"speculative_algorithm": "DFLASH"}, "speculative decoding by DFLASH"),
    (
        {"speculative_algorithm": "EAGLE", "speculative_accept_threshold_single": 0.9},
        "not lossless",
    ),
    (
        {"speculative_algorithm": "NGRAM", "speculative_accept_threshold_acc": 0.9},
        "not lossless",
    ),
    (
        {"speculative_algorithm": "EAGLE", "attn_dp_size": 2},
        "speculative decoding under data-parallel attention",
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
def test_modes_that_are_not_covered_refuse_the_penalty_only(
    server_config: dict[str, Any], mode: dict[str, Any], why: str
) -> None:
    server_config.update(mode)
    with pytest.raises(ValueError, match=r"^lz_penalty must be 0 .*got 0\.15") as caught:
        admit(lz_penalty=0.15)
    assert why in str(caught.value)
    assert admit(lz_window_size=8).lz_penalty == 0


def test_simulated_acceptance_refuses_the_penalty(server_config: dict[str, Any]) -> None:
    from sglang.srt.environ import envs

    server_config["speculative_algorithm"] = "EAGLE"
    with (
        envs.SGLANG_SIMULATE_ACC_LEN.override(2.5),
        pytest.raises(ValueError, match="SGLANG_SIMULATE_ACC_LEN"),
    ):
        admit(lz_penalty=0.15)
    assert admit(lz_penalty=0.15).lz_penalty == 0.15


def test_beam_search_refuses_the_penalty(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="beam search"):
        admit(lz_penalty=0.15, beam_width=2)
    assert admit(lz_penalty=0.15, beam_width=1).lz_penalty == 0.15


def test_prompts_without_token_ids_cannot_be_included(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="input_embeds"):
        admit(lz_penalty=0.15, lz_include_prompt=True, embeds=True)
    assert admit(lz_penalty=0.15, embeds=True).lz_penalty == 0.15


def test_encoder_decoder_models_refuse_the_penalty(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="encoder-decoder"):
        admit(lz_penalty=0.15, model_is_encoder_decoder=True)


def test_the_server_maximum_bounds_the_window(server_config: dict[str, Any]) -> None:
    server_config["lz_max_window_size"] = 16
    assert admit().lz_window_size == 16
    with pytest.raises(ValueError, match=r"\[1, 16\]"):
        admit(lz_window_size=17)


def test_generate_bodies_reach_upstreams_schema_without_our_fields() -> None:
    params = {"temperature": 0, "lz_penalty": 1, "lz_cost": "rate"}
    for body in ({}, {"text": "a"}, {"sampling_params": None}, "no object", {"sampling_params": 3}):
        assert requests.without_lz_fields(body) == body
    one = {"text": "a", "sampling_params": params}
    assert requests.without_lz_fields(one)["sampling_params"] == {"temperature": 0}
    assert one["sampling_params"] is params
    assert len(params) == 3
    many = {"sampling_params": [params, {"top_p": 1}]}
    assert requests.without_lz_fields(many)["sampling_params"] == [{"temperature": 0}, {"top_p": 1}]


def test_a_wrong_generate_body_is_known_before_the_stream_starts(
    server_config: dict[str, Any],
) -> None:
    assert requests.contract_error({"text": "a"}) is None
    assert requests.contract_error({"sampling_params": [{}, {"lz_penalty": 1}]}) is None
    error = requests.contract_error({"sampling_params": [{}, {"lz_penalty": 11}]})
    assert error is not None
    assert error.startswith("lz_penalty must be")
    server_config["speculative_algorithm"] = "DFLASH"
    assert requests.contract_error({"sampling_params": {"lz_penalty": 1}}) is not None


def test_preferred_parameters_count_before_the_stream_starts(server_config: dict[str, Any]) -> None:
    server_config["preferred_sampling_params"] = {"lz_window_size": 8}
    error = requests.contract_error({"sampling_params": {"lz_buffer_size": 9}})
    assert error is not None
    assert "[1, 8]" in error


def test_null_takes_the_preferred_value_and_a_zero_does_not(server_config: dict[str, Any]) -> None:
    server_config["preferred_sampling_params"] = {"lz_penalty": 0.5, "lz_cost": "rate"}
    nulls = dict.fromkeys(requests.FIELDS)
    assert (admit(**nulls).lz_penalty, admit(**nulls).lz_cost) == (0.5, "rate")
    assert admit(lz_penalty=0, lz_cost="marginal").lz_penalty == 0


def test_ollama_options_answer_400(server_config: dict[str, Any]) -> None:
    assert requests.ollama_fields({"seed": 1, "lz_penalty": 0.1}) == {"lz_penalty": 0.1}
    with pytest.raises(HTTPException) as caught:
        requests.ollama_fields({"lz_cost": "x"})
    assert caught.value.status_code == 400
    assert caught.value.detail.startswith("lz_cost must be")


def test_unset_fields_are_not_forwarded(server_config: dict[str, Any]) -> None:
    """A null would override the server's preferred sampling parameters."""
    assert requests.checked_fields(requests.LZFields()) == {}
    given = requests.LZFields(lz_penalty=0.2, lz_include_prompt=False)
    assert requests.checked_fields(given) == {"lz_penalty": 0.2, "lz_include_prompt": False}


def test_wrong_fields_are_known_before_a_stream_starts(server_config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="lz_buffer_size must be"):
        requests.checked_fields(requests.LZFields(lz_buffer_size=True))
    server_config["dllm_algorithm"] = "LowConfidence"
    with pytest.raises(ValueError, match="diffusion"):
        requests.checked_fields(requests.LZFields(lz_penalty=0.1))


@pytest.mark.parametrize("value", [0.15, "zzz", 0])
def test_a_field_that_an_endpoint_does_not_read_is_refused(
    server_config: dict[str, Any], value: object
) -> None:
    """Where all sampling parameters stand in one object, a field beside it would be ignored."""
    error = requests.contract_error({"text": "a", "lz_penalty": value})
    assert (
        error == f"lz_penalty must stand in sampling_params here, got {value!r} at the top level."
    )
    with pytest.raises(ValueError, match="lz_penalty must stand in options here"):
        requests.LZFieldsInOptions.model_validate({"model": "m", "lz_penalty": value})


@pytest.fixture
def config(server_config: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(smg_grpc_mode=False, **server_config)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "verify_installed", lambda: [])


@pytest.mark.usefixtures("whole")
class TestStartup:
    def test_a_good_server_starts(self, config: SimpleNamespace) -> None:
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
            ("speculative_algorithm", "DFLASH", "speculative decoding"),
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

    def test_a_wrong_maximum_stops_it(self, config: SimpleNamespace) -> None:
        config.lz_max_window_size = 0
        with pytest.raises(ValueError, match="--lz-max-window-size"):
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
        monkeypatch.setattr(startup, "verify_installed", lambda: ["sglang/a.py is changed"])
        with pytest.raises(ValueError, match=r"sglang/a\.py is changed.*doctor"):
            startup.check_server(config)


def test_the_installed_files_are_whole() -> None:
    assert seal.verify_installed() == []
