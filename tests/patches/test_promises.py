"""Each patch of the request path and the server, held to what its header promises.

Both sampling patches are held to theirs by test_upstream_traps.py.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import pickle
import subprocess
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
import torch

from inprocess import LZ, make_request
from lz_penalty.detector import Loop
from lz_penalty.fields.histories import NEUTRAL, HistoryParams
from lz_penalty.fields.lz import LZParams
from lz_penalty.fields.repetition import RepetitionDetection
from sglang_lz.guard.guard import FinishRepetition
from sglang_lz.http.admission import FIELDS, UNPENALISED

LOOP = {"max_pattern_size": 64, "min_pattern_size": 2, "min_count": 8, "action": "stop"}
LOOP |= {"ignore_numbers": True}
GIVEN = {"lz_penalty": 0.2, "lz_buffer_size": 16, "lz_cost": "rate", "repetition_detection": LOOP}
ADMIT = "sglang_lz.http.admission.admit"


def lz_part(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name in FIELDS}


class TestSamplingParams:
    """requests/sampling-params"""

    def test_our_fields_come_last_on_the_positional_wire(self) -> None:
        from sglang.srt.sampling.sampling_params import SamplingParams

        ours = ("lz_params", "history_params", "proper_tokens", "repetition_detection")
        assert SamplingParams.__struct_fields__[-4:] == ours

    def test_fields_survive_the_wire_and_may_be_absent(self) -> None:
        """As upstream sends a request to its scheduler, and as it copies one."""
        from sglang.srt.managers.io_struct import (
            TokenizedGenerateReqInput,
            msgpack_decode,
            msgpack_encode,
        )
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = SamplingParams(
            temperature=0.5,
            lz_params=LZParams.parse(GIVEN, 64),
            history_params=HistoryParams.parse(GIVEN),
            proper_tokens=True,
            repetition_detection=RepetitionDetection(64, 0, 8, "end_thinking", True),
        )
        params.normalize(None)
        request = TokenizedGenerateReqInput(
            sampling_params=params,
            input_ids=array("q", [1]),
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            stream=False,
            **dict.fromkeys(
                ("input_text", "input_embeds", "mm_inputs", "token_type_ids", "token_ids_logprob")
            ),
        )
        assert msgpack_decode(msgpack_encode(request)).sampling_params == params
        for copied in (
            copy.copy(params),
            copy.deepcopy(params),
            pickle.loads(pickle.dumps(params)),
        ):
            assert copied == params
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(params))
        without = msgspec.msgpack.decode(msgspec.msgpack.encode(wire[:-4]), type=SamplingParams)
        assert without.lz_params is None
        assert without.history_params is None
        assert without.repetition_detection is None
        assert without.proper_tokens is False

    def test_preferred_parameters_are_checked_without_a_tokenizer(self, model_path: str) -> None:
        from sglang.srt.server_args import prepare_server_args

        preferred = {"lz_penalty": 0.5, "temperature": 0}
        args = ["--model-path", model_path, "--device", "cpu", "--skip-tokenizer-init"]
        args += ["--preferred-sampling-params", json.dumps(preferred)]
        server_args = prepare_server_args(args)
        server_args.resolve_once()
        server_args.check_server_args()


class TestAdmission:
    """requests/admission"""

    def test_every_request_is_admitted_after_the_preferred_parameters(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sglang.srt.managers.io_struct import GenerateReqInput
        from sglang.srt.managers.tokenizer_manager import TokenizerManager
        from sglang.srt.sampling.sampling_params import SamplingParams

        class Plugins(SamplingParams):
            """What a plugin may put in its place."""

        def refuse(params: Any, requested: Any, **facts: Any) -> None:
            raise ValueError(params.temperature, params.lz_params, requested, facts)

        monkeypatch.setattr(ADMIT, refuse)
        manager = SimpleNamespace(
            preferred_sampling_params={"lz_penalty": 1.0, "temperature": 0.5},
            sampling_params_class=Plugins,
            tokenizer=None,
            model_config=SimpleNamespace(vocab_size=8, is_encoder_decoder=True),
        )
        obj = GenerateReqInput(
            input_ids=[1], sampling_params={"lz_penalty": 0.5}, custom_logit_processor="{}"
        )
        with pytest.raises(ValueError, match="lz_penalty") as caught:
            TokenizerManager._create_tokenized_object(manager, obj, "", [1], input_embeds=[[0.0]])
        facts = {
            "is_encoder_decoder": True,
            "has_input_embeds": True,
            "custom_logit_processor": "{}",
            "tokenizer": None,
        }
        assert caught.value.args == (0.5, None, {"lz_penalty": 0.5}, facts)


def test_a_request_that_is_prefilled_again_keeps_the_fields() -> None:
    """requests/rebootstrap: no way was found to reach it, so what is sent is all that is held."""
    from sglang.srt.entrypoints.api_contract import generate_contract_error

    req = make_request([1, 2, 3])
    for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room"):
        setattr(req, name, None)
    req.sampling_params.repetition_detection = RepetitionDetection(**LOOP)
    req.sampling_params.history_params = HistoryParams(
        dry_multiplier=0.5, no_repeat_ngram_whitelist=(3,)
    )
    req.sampling_params.proper_tokens = True
    payload = req.build_rebootstrap_payload()
    given = LZParams.parse(LZ, 8192).request_fields()
    others = HistoryParams(dry_multiplier=0.5, no_repeat_ngram_whitelist=(3,)).request_fields()
    expected = {**given, **others, "repetition_detection": LOOP, "proper_tokens": True}
    assert lz_part(payload["sampling_params"]) == expected
    assert generate_contract_error(json.loads(json.dumps(payload))) is None
    req.sampling_params.lz_params = req.sampling_params.repetition_detection = None
    req.sampling_params.history_params = None
    req.sampling_params.proper_tokens = False
    nothing = {
        "lz_penalty": 0,
        **HistoryParams().request_fields(),
        "repetition_detection": {},
        "proper_tokens": False,
    }
    assert lz_part(req.build_rebootstrap_payload()["sampling_params"]) == nothing


def test_scoring_has_no_preferred_penalty() -> None:
    """requests/rerank-score, and `resolve`: logprobs are the answer there, not a sampled text.

    Every request that upstream makes up by itself, with sampling parameters of its own, generates
    nothing or says that it has no penalty; those of a warm-up answer nobody.
    """
    import sglang

    made_up = {}
    srt = Path(sglang.__file__).parent / "srt"
    for path in (*srt.glob("entrypoints/**/*.py"), *srt.glob("managers/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_argument = isinstance(node, ast.keyword) and node.arg == "sampling_params"
            if is_argument and isinstance(node.value, ast.Dict) and path.name != "warmup.py":
                made_up[f"{path.name}:{node.value.lineno}"] = ast.unparse(node.value)
    assert len(made_up) >= 2
    for place, params in made_up.items():
        assert "'max_new_tokens': 0" in params or "**UNPENALISED" in params, place
    assert UNPENALISED == {"lz_penalty": 0, "proper_tokens": False, **NEUTRAL}


class TestFinishReasons:
    """guard/finish-reasons"""

    @pytest.mark.parametrize("reason", ["repetition", "stop", "length"])
    def test_a_choice_names_a_loop_as_vllm_does(self, reason: str) -> None:
        from sglang.srt.entrypoints.openai import protocol
        from sglang.srt.entrypoints.openai.sse_utils import build_sse_content

        loop = FinishRepetition(Loop(pattern_size=2, begin=1, end=7), reason).to_json()
        message = protocol.ChatMessage(role="assistant", content="a")
        for model, content in (
            ("CompletionResponseChoice", {"text": "a"}),
            ("CompletionResponseStreamChoice", {"text": "a"}),
            ("ChatCompletionResponseChoice", {"message": message}),
            ("ChatCompletionResponseStreamChoice", {"delta": protocol.DeltaMessage()}),
        ):
            choice = getattr(protocol, model)
            ended = choice(
                index=0, finish_reason=loop["type"], matched_stop=loop["matched"], **content
            )
            for dumped in (ended.model_dump(), json.loads(ended.model_dump_json())):
                assert dumped["finish_reason"] == reason
                assert dumped["stop_reason"] == "repetition_detected"
            other = choice(index=0, finish_reason="stop", matched_stop="a", **content)
            assert "stop_reason" not in other.model_dump()
        for matched, found in ((loop["matched"], "repetition_detected"), ("a", None), (7, None)):
            chunk = build_sse_content("i", 0, "m", 0, finish_reason=reason, matched_stop=matched)
            (choice,) = json.loads(chunk.removeprefix("data: "))["choices"]
            assert choice.get("stop_reason") == found
            assert (choice["finish_reason"], choice["matched_stop"]) == (reason, matched)


class TestServer:
    """server/max-window-size and server/startup-check"""

    def test_a_server_checks_itself_before_it_starts(
        self, model_path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sglang.srt.server_args import ServerArgs

        checked = []
        monkeypatch.setattr("sglang_lz.startup.server.check_server", checked.append)
        args = ServerArgs(model_path=model_path, device="cpu", lz_max_window_size=77)
        args.resolve_once()
        args.check_server_args()
        assert [config.lz_max_window_size for config in checked] == [77]


class TestCPU:
    """cpu/environment and cpu/optional-torchvision"""

    @pytest.mark.slow
    def test_the_cpu_engine_needs_no_variables(self) -> None:
        code = "import sglang; from sglang.srt.utils import is_cpu; assert is_cpu()"
        env = {name: value for name, value in os.environ.items() if "SGLANG" not in name}
        subprocess.run([sys.executable, "-c", code], check=True, env=env)

    def test_a_server_imports_without_torchvision(self) -> None:
        import sglang.srt.configs.deepseek_ocr
        import sglang.srt.multimodal.internvl_utils

        assert sglang.srt.configs.deepseek_ocr.TF is None
        assert sglang.srt.multimodal.internvl_utils.T is None

    def test_speculation_gets_a_backend_that_supports_it(self) -> None:
        """cpu/speculative-attention"""
        from sglang.srt.arg_groups.overrides import _attention_backend_platform_fallbacks

        def backend(device: str, algorithm: str | None) -> dict[str, str]:
            view = SimpleNamespace(
                device=device, speculative_algorithm=algorithm, attention_backend="intel_amx"
            )
            return _attention_backend_platform_fallbacks(view)

        assert backend("cpu", "EAGLE") == {"attention_backend": "intel_amx"}
        assert backend("cpu", None) == {"attention_backend": "torch_native"}
        assert backend("cuda", "EAGLE") == {}

    def test_deterministic_inference_takes_the_backends_of_a_cpu(self) -> None:
        """cpu/deterministic"""
        from sglang.srt.arg_groups.overrides import _deterministic_attention_backend

        def check(device: str) -> dict[str, str]:
            view = SimpleNamespace(
                device=device, enable_deterministic_inference=True, attention_backend="intel_amx"
            )
            return _deterministic_attention_backend(view)

        assert check("cpu") == {}
        with pytest.raises(ValueError, match="intel_amx"):
            check("cuda")

    def test_pages_need_no_triton(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """cpu/speculative-attention"""
        from sglang.srt.mem_cache import allocation

        monkeypatch.setattr(allocation, "attention_backends", lambda: ("intel_amx", "intel_amx"))
        slots = torch.arange(12, dtype=torch.int32).view(2, 6)
        found = allocation.get_last_loc(slots, torch.tensor([1, 0]), torch.tensor([3, 0]))
        assert found.tolist() == [8, -1]


class TestVerification:
    """fixes/verify-temperature and cpu/speculative-sampling"""

    @pytest.fixture(autouse=True)
    def no_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sglang.srt import runtime_context
        from sglang.srt.layers import dp_attention
        from sglang.srt.speculative import eagle_utils

        settings = SimpleNamespace(
            speculative_use_rejection_sampling=False,
            speculative_accept_threshold_single=1.0,
            speculative_accept_threshold_acc=1.0,
        )
        parallel = SimpleNamespace(tp_group=SimpleNamespace(world_size=1))
        monkeypatch.setattr(eagle_utils, "get_spec", lambda: settings)
        monkeypatch.setattr(runtime_context, "get_parallel", lambda: parallel)
        alone = SimpleNamespace(disaggregation_mode="null")
        monkeypatch.setattr(runtime_context, "get_disagg", lambda: alone)
        monkeypatch.setattr(dp_attention, "is_dp_attention_enabled", lambda: False)

    def verify(self, temperatures: list[float], logits: torch.Tensor, seed: int) -> list[int]:
        """The token that upstream takes behind the root of each request, logits (B, V)."""
        from sglang.srt.sampling.sampling_params import SamplingParams
        from sglang.srt.speculative.eagle_utils import eagle_sample

        torch.manual_seed(seed)
        params = [SamplingParams(temperature=value) for value in temperatures]
        for request in params:
            request.normalize(None)
        count = len(params)
        alone = torch.full((count, 1), -1)
        verify_input = SimpleNamespace(
            draft_token=torch.zeros(count, dtype=torch.int64),
            draft_token_num=1,
            max_tree_depth=1,
            tree_topk=1,
            retrieve_index=torch.arange(count)[:, None],
            retrieve_next_token=alone,
            retrieve_next_sibling=alone,
        )
        sampling_info = SimpleNamespace(
            need_min_p_sampling=False,
            acc_additive_penalties=None,
            acc_scaling_penalties=None,
            logit_bias=None,
            has_watermark_candidates=False,
            sampling_seed=None,
            is_all_greedy=all(request.top_k == 1 for request in params),
            need_top_k_sampling=True,
            need_top_p_sampling=True,
            temperatures=torch.tensor([[request.temperature] for request in params]),
            top_ks=torch.tensor([request.top_k for request in params], dtype=torch.int32),
            top_ps=torch.tensor([request.top_p for request in params]),
        )
        batch = SimpleNamespace(
            device="cpu",
            forward_mode=SimpleNamespace(is_idle=lambda: False),
            seq_lens=torch.full((count,), 5),
            sampling_info=sampling_info,
            req_to_token_pool=SimpleNamespace(lz_penalizer=None),
            return_logprob=False,
        )
        output = SimpleNamespace(next_token_logits=logits.clone())
        predicted, lengths, _ = eagle_sample(verify_input, batch, output)
        assert lengths.tolist() == [1] * count
        return predicted.tolist()

    def test_each_request_has_its_own_temperature(self) -> None:
        logits = torch.tensor([[0.0, 1.0, 0.5, -1.0]]).repeat(3, 1)
        seen = [self.verify([0.0, 1.0, 100.0], logits, seed) for seed in range(100)]
        greedy, warm, hot = ([row[i] for row in seen] for i in range(3))
        assert set(greedy) == {1}
        assert 30 < warm.count(1) < 62  # of 46
        assert set(hot) == {0, 1, 2, 3}

    def test_all_greedy_requests_take_the_likeliest(self) -> None:
        logits = torch.randn(4, 50)
        assert self.verify([0.0] * 4, logits, 0) == logits.argmax(1).tolist()


class TestDeadEnds:
    """fixes/dead-ends"""

    @pytest.fixture(autouse=True)
    def _server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sglang_lz.constraints.dead_ends.is_pipeline", lambda: False)
        monkeypatch.setattr("sglang_lz.guard.metrics.finished", MagicMock())

    @staticmethod
    def grammar(allowed: int) -> Any:
        """A grammar that allows the first tokens of 64, so many."""
        from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject

        def fill(mask: torch.Tensor, row: int) -> None:
            mask[row] = 0
            mask[row, 0] = (1 << allowed) - 1

        grammar = MagicMock(finished=False, fill_vocab_mask=fill, loop=None)
        grammar.is_terminated.return_value = False
        grammar.allocate_vocab_mask = lambda vocab_size, batch_size, device: torch.full(
            (batch_size, 2), -1, dtype=torch.int32
        )
        grammar.fill_vocab_mask_batched = BaseGrammarObject.fill_vocab_mask_batched
        grammar.move_vocab_mask = lambda mask, device: mask
        del grammar.lz_dead_end, grammar.grammar, grammar.matcher
        return grammar

    def test_a_dead_end_is_unmasked_and_ends_its_request(self) -> None:
        from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

        live, dead = self.grammar(3), self.grammar(0)
        info = SimpleNamespace(
            grammars=[live, None, dead], vocab_size=64, temperatures=[1] * 3, device="cpu"
        )
        SamplingBatchInfo.update_regex_vocab_mask(info)
        assert info.grammar_mask.vocab_mask.tolist() == [[7, 0], [-1, -1], [-1, -1]]
        assert not hasattr(live, "lz_dead_end")
        req = make_request([5])
        req.grammar, req.sampling_params.regex = dead, "x"
        req.output_ids.extend([1, 2])
        req.update_finish_state()
        reason = req.finished_reason.to_json()
        assert reason["message"].startswith("regex must allow some token")
        assert reason["status_code"] == 400
        assert req.finished_len == 1

    def test_no_draft_continues_a_dead_end(self) -> None:
        """A dead end of a tree ends its request only where the output has come to it."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT
        from sglang.srt.speculative.spec_utils import generate_token_bitmask

        dead = self.grammar(0)
        req = make_request([5])
        req.grammar, req.sampling_params.ebnf = dead, "x"
        links = torch.tensor([[1, -1], [-1, -1]]), torch.full((2, 2), -1)
        other = SimpleNamespace(grammar=None)
        mask, _ = generate_token_bitmask([other, req], *links, torch.tensor([[1, 2], [1, 2]]), 64)
        assert (mask == -1).all()
        dead.accept_token.assert_not_called()
        req.output_ids.append(3)
        req.update_finish_state()
        assert req.finished_reason is None
        req.to_finish = FINISH_ABORT("Grammar accept_token failed: no", 500)
        req.update_finish_state()
        assert req.finished_reason.to_json()["status_code"] == 400
