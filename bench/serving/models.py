"""The models of the tables, by their architectures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import DEMO

SERVER = "server"
"""Stands for the model of --base-url in the table."""
UPSTREAM = "upstream_penalties"
"""The key of a variant with upstream's own frequency and repetition penalties, which this build
does not serve."""


@dataclass(frozen=True)
class Model:
    """An architecture of the table.

    Attributes:
        config: its config.json.
        batch_size: sequences of the static batch.
        paper: throughput lost in the paper, in per cent (arXiv 2504.20131, table 1, 8 x H100).
    """

    config: dict[str, Any]
    batch_size: int
    paper: float | None

    def tp(self, most: int) -> int:
        """On how many devices it runs if there are `most`: a power of two that divides its heads,
        which tensor parallelism distributes."""
        heads: int = self.config["num_attention_heads"]
        return max(n for n in (1 << i for i in range(most.bit_length())) if heads % n == 0)


def _qwen2_5(**sizes: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "use_sliding_window": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "torch_dtype": "bfloat16",
        **sizes,
    }


def _demo() -> dict[str, Any]:
    config = json.loads((DEMO / "model" / "config.json").read_text())
    # Eight heads let --tp 8 be tried.
    return {**config, "hidden_size": 256, "num_attention_heads": 8}


MODELS = {
    "qwen2.5-0.5b": Model(
        _qwen2_5(
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
        batch_size=8,
        paper=None,
    ),
    "qwen2.5-1.5b": Model(
        _qwen2_5(
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
        batch_size=64,
        paper=0.55,
    ),
    "qwen2.5-7b": Model(
        _qwen2_5(
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152064,
            tie_word_embeddings=False,
        ),
        batch_size=32,
        paper=0.14,
    ),
    "qwen2.5-32b": Model(
        _qwen2_5(
            hidden_size=5120,
            intermediate_size=27648,
            num_hidden_layers=64,
            num_attention_heads=40,
            num_key_value_heads=8,
            vocab_size=152064,
            tie_word_embeddings=False,
        ),
        batch_size=8,
        paper=0.03,
    ),
    "demo": Model(_demo(), batch_size=4, paper=None),
}


def model_of(name: str, paths: dict[str, str]) -> Model:
    """The model of this name in MODELS, or the one in the folder that `paths` has for it."""
    if name in MODELS:
        return MODELS[name]
    config = json.loads((Path(paths[name]) / "config.json").read_text())
    return Model(config, batch_size=8, paper=None)


def write_model(config: dict[str, Any], folder: Path) -> None:
    """Write what upstream needs of a model with dummy weights: its config and a tokenizer.

    Its tokens are the bytes, then one for each other id: every id decodes to some text, without
    which upstream's client counts no token.
    """
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tokens = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"<{token}>" for token in range(len(tokens), config["vocab_size"])]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
