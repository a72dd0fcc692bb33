"""Turns a GGUF file of a Llama or Qwen2 model into a folder that SGLang and transformers load.

The weights become float32, since a quantized value needs more bits than bfloat16 has. Config and
weights are as transformers reads them. The tokenizer is made here, because transformers gives such
a file neither SmolLM2's split of digits nor Qwen2's NFC.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

_SPLITS = {
    "smollm": (Digits(individual_digits=True), True),
    "qwen2": (Split(Regex(PRETOKENIZE_REGEX), "isolated"), False),
}
"""By `tokenizer.ggml.pre`: what splits a text first, and whether GPT-2's regex splits it again."""
_NFC = ("qwen2",)
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # token types


def convert(file: Path, folder: Path) -> None:
    """Write config, tokenizer and weights of a model into a folder.

    Args:
        file: a GGUF file.
        folder: exists and is empty.

    Raises:
        ValueError: its architecture or tokenizer is not one that is known here.
        RuntimeError: a tensor is missing (NotImplementedError), or its shape is not the one that
            its header says.
    """
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    config.rms_norm_eps = round(config.rms_norm_eps, 12)  # the file has it in float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    content = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)
    tokenizer = _tokenizer(content["tokenizer"])
    tokenizer.chat_template = content["tokenizer_config"]["chat_template"]
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    # Without a tensor of its own, the head is the embedding.
    model.load_state_dict(content["tensors"], strict=False, assign=True)
    model.tie_weights()
    ends = {config.eos_token_id, tokenizer.convert_tokens_to_ids("<|endoftext|>")}
    model.generation_config.eos_token_id = sorted(ends)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def _tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """A byte-level BPE."""
    split = fields["pre_tokenizer_type"]
    if fields["tokenizer_type"] != "gpt2" or split not in _SPLITS:
        raise ValueError(
            f"The GGUF file's tokenizer.ggml.pre must be {' or '.join(_SPLITS)}, got {split!r}."
        )
    names = fields["tokens"]
    typed = list(zip(names, fields["token_type"], strict=True))
    vocabulary = {name: i for i, (name, kind) in enumerate(typed) if kind != _UNUSED}
    merges = [tuple(merge.split(" ")) for merge in fields["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    if split in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    first, has_regex = _SPLITS[split]
    tokenizer.pre_tokenizer = Sequence(
        [first, ByteLevel(add_prefix_space=False, use_regex=has_regex)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(name, special=kind == _CONTROL, normalized=False)
            for name, kind in typed
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=names[fields["bos_token_id"]],
        eos_token=names[fields["eos_token_id"]],
        pad_token=names[fields["pad_token_id"]],
        clean_up_tokenization_spaces=False,
    )
