"""fixes/token-ids, in process.

What a real server answers is in tests/server/test_refusals.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_lz.fields.lz import FieldError

V = 2048


class TestTokenIds:
    """fixes/token-ids"""

    @staticmethod
    def manager(**settings: Any) -> Any:
        """As much of upstream's tokenizer manager as looks at a request."""
        from sglang.srt.managers.tokenizer_manager import TokenizerManager

        made = TokenizerManager.__new__(TokenizerManager)
        made.model_config = SimpleNamespace(
            vocab_size=V, joint_head_config=None, pointer_head=None, is_encoder_decoder=False
        )
        made.context_len, made.num_reserved_tokens = 64, 0
        made.allow_auto_truncate = made.validate_total_tokens = False
        made.is_generation = True
        vars(made).update(settings)
        return made

    @pytest.mark.parametrize("ids", [[5, -1], [5, V], [5, 2**70], [True, 5], [5, "6"]], ids=str)
    def test_every_prompt_is_checked_before_it_is_sent(
        self, ids: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sglang.srt.managers import tokenizer_manager
        from sglang.srt.managers.io_struct import EmbeddingReqInput, GenerateReqInput

        features = SimpleNamespace(enable_encoder_swa_bounded_replay=False)
        monkeypatch.setattr(
            tokenizer_manager, "get_exec", lambda: SimpleNamespace(features=features)
        )
        for kind in (GenerateReqInput, EmbeddingReqInput):
            request = kind(input_ids=ids, sampling_params={})
            with pytest.raises(FieldError, match="input_ids must be token ids in"):
                self.manager()._validate_one_request(request, ids)

    def test_copies_are_counted_before_they_are_made(self) -> None:
        from sglang.srt.managers.io_struct import GenerateReqInput

        for params in ({"n": 10**9}, [{"n": 0}], {"n": "2"}):
            with pytest.raises(FieldError, match="n must be an integer"):
                GenerateReqInput(text="a", sampling_params=params).normalize_batch_and_arguments()

    def test_detokenize_refuses_unknown_tokens(self) -> None:
        from sglang.srt.entrypoints.openai.serving_tokenize import OpenAIServingDetokenize

        serving = OpenAIServingDetokenize.__new__(OpenAIServingDetokenize)
        serving.tokenizer_manager = self.manager()
        for tokens in ([-1], [2**40], [[5], [V]]):
            with pytest.raises(FieldError, match="tokens must be token ids in"):
                serving._convert_to_internal_request(SimpleNamespace(tokens=tokens), None)
        right = SimpleNamespace(tokens=[[5], [V - 1]])
        assert serving._convert_to_internal_request(right, None) == (right, right)
