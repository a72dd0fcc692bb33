"""Turns a GGUF file of a Llama or Qwen2 model into a folder that SGLang and transformers load.

The weights become float32, since a quantized value needs more bits than bfloat16 has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tqdm import tqdm

Weights = NDArray[np.float32]

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The regex by which Qwen2's tokenizer splits a text."""
_SPLIT = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
_SPLITS: dict[str, tuple[dict[str, Any], bool]] = {
    "smollm": ({"type": "Digits", "individual_digits": True}, True),
    "qwen2": (_SPLIT, False),
}
"""By `tokenizer.ggml.pre`: what splits a text first, and whether GPT-2's regex splits it again."""
_NFC = ("qwen2",)
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # token types
_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(file: Path, folder: Path) -> None:
    """Write config, tokenizer and weights of a model into a folder.

    Args:
        file: a GGUF file.
        folder: exists and is empty.

    Raises:
        ValueError: its architecture, tokenizer or a tensor's shape is not one that is known here.
    """
    reader = GGUFReader(file)
    header = _Header({name: field.contents for name, field in reader.fields.items()})
    config, generation = _config(header, any(t.name == "output.weight" for t in reader.tensors))
    files = {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer.json": _tokenizer(header),
        "tokenizer_config.json": _tokenizer_config(header),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    template = header["tokenizer.chat_template"]
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    shown = tqdm(reader.tensors, desc="converting", unit="tensor", leave=False)
    weights = folder / "model.safetensors"
    save_file(dict(_weights(shown, config)), weights, {"format": "pt"})
    weights.chmod(0o644)


class _Header:
    """The fields of a GGUF file, each read when it is asked for."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        name = name.replace("{arch}", self["general.architecture"] if "{arch}" in name else "")
        if name not in self._fields:
            raise ValueError(f"The GGUF file has no field {name}.")
        return self._fields[name]()


def _config(header: _Header, has_head: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of config.json and generation_config.json."""
    architecture = header["general.architecture"]
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"The GGUF file's architecture must be {' or '.join(ARCHITECTURES)}, got "
            f"{architecture!r}."
        )
    heads, hidden = header["{arch}.attention.head_count"], header["{arch}.embedding_length"]
    tokens = header["tokenizer.ggml.tokens"]
    end = header["tokenizer.ggml.eos_token_id"]
    ends = {end, tokens.index("<|endoftext|>")}
    shared = {"bos_token_id": header["tokenizer.ggml.bos_token_id"], "eos_token_id": sorted(ends)}
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "dtype": "float32",
        # Without it, transformers warns of an error of Mistral's tokenizers.
        "transformers_version": "5.0.0",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "head_dim": hidden // heads,
        "intermediate_size": header["{arch}.feed_forward_length"],
        "max_position_embeddings": header["{arch}.context_length"],
        "num_attention_heads": heads,
        "num_hidden_layers": header["{arch}.block_count"],
        "num_key_value_heads": header["{arch}.attention.head_count_kv"],
        "rms_norm_eps": round(header["{arch}.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": header["{arch}.rope.freq_base"],
        "tie_word_embeddings": not has_head,
        "vocab_size": len(tokens),
        **shared,
        "eos_token_id": end,
    }
    return config, shared


def _weights(
    tensors: Iterable[ReaderTensor], config: dict[str, Any]
) -> Iterator[tuple[str, Weights]]:
    """The weights by the names that transformers gives them, float32."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    wide = {name: count * config["head_dim"] for name, count in heads.items()}
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {
        **dict.fromkeys(("token_embd", "output"), (config["vocab_size"], hidden)),
        **dict.fromkeys(("output_norm", "attn_norm", "ffn_norm"), (hidden,)),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (inner, hidden)),
        "ffn_down": (hidden, inner),
        "attn_q": (wide["attn_q"], hidden),
        **dict.fromkeys(("attn_k", "attn_v"), (wide["attn_k"], hidden)),
        "attn_output": (hidden, wide["attn_q"]),
    }
    for tensor in tensors:
        *layer, kind, suffix = tensor.name.split(".")
        weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        wanted = shapes.get(kind, ())[: 1 if suffix == "bias" else 2]
        if weights.shape != wanted:
            raise ValueError(f"{tensor.name} must have the shape {wanted}, got {weights.shape}.")
        if kind in heads and config["model_type"] == "llama":
            # GGUF keeps both halves of a rotated pair side by side for this architecture.
            weights = weights.reshape(heads[kind], -1, 2, hidden).swapaxes(1, 2).reshape(wanted)
        name = f"model.layers.{layer[1]}.{_INSIDE[kind]}" if layer else _OUTSIDE[kind]
        yield f"{name}.{suffix}", np.ascontiguousarray(weights)


def _tokenizer(header: _Header) -> dict[str, Any]:
    """The content of tokenizer.json: a byte-level BPE."""
    split = header["tokenizer.ggml.pre"]
    if header["tokenizer.ggml.model"] != "gpt2" or split not in _SPLITS:
        raise ValueError(
            f"The GGUF file's tokenizer.ggml.pre must be {' or '.join(_SPLITS)}, got {split!r}."
        )
    first, has_regex = _SPLITS[split]
    of_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    names = header["tokenizer.ggml.tokens"]
    types = header["tokenizer.ggml.token_type"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": name, "special": type_ == _CONTROL, **flags}
            for number, (name, type_) in enumerate(zip(names, types, strict=True))
            if type_ in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if split in _NFC else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [first, {**of_bytes, "use_regex": has_regex}],
        },
        "post_processor": None,
        "decoder": {**of_bytes, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {
                name: number
                for number, (name, type_) in enumerate(zip(names, types, strict=True))
                if type_ not in (_UNUSED, _USER_DEFINED)
            },
            "merges": [merge.split(" ") for merge in header["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(header: _Header) -> dict[str, Any]:
    names = header["tokenizer.ggml.tokens"]
    ids = {kind: header[f"tokenizer.ggml.{kind}_token_id"] for kind in ("bos", "eos", "padding")}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names[ids["bos"]],
        "eos_token": names[ids["eos"]],
        "pad_token": names[ids["padding"]],
        "model_max_length": header["{arch}.context_length"],
        "clean_up_tokenization_spaces": False,
    }
