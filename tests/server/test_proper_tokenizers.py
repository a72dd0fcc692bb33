"""`proper_tokens` on servers that have tokenizers of other families than the demo's."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from proper_files import file_of, with_whole_tokens
from server.client import post_ok
from server.configurations import CONFIGURATIONS, FORKED
from server.launch import serving

END = 2
"""The end of sequence of the demo model."""
# By name: the tokenizer, and what it calls the end of sequence.
TOKENIZERS = {
    "byte fallback": (lambda: file_of("replace"), "</s>"),
    "whole tokens": (lambda: with_whole_tokens(2000), "<|im_end|>"),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "code": {"type": "string", "pattern": "^[ab]{2}-[0-9]{1,3}$"},
    },
    "required": ["name", "code"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "none": {},
    "regex": {"regex": "(a|b| |1|\u65e5|\u00e9|\\n){1,40}"},
    "schema": {"json_schema": json.dumps(SCHEMA)},
}
PENALTIES: tuple[dict[str, Any], ...] = (
    {},
    {"lz_penalty": 0.5},
    {"lz_penalty": 0.5, "lz_onset": 3, "dry_multiplier": 0.5},
)
COUNT = 12


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_outputs_are_the_tokenizers_own(tmp_path: Path, kind: str) -> None:
    make, end = TOKENIZERS[kind]
    tokenizer = Tokenizer.from_str(with_end(make(), end))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    about = {"tokenizer_class": "TokenizersBackend", "eos_token": end}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    flags = (*CONFIGURATIONS["overlap"].flags, "--tokenizer-path", str(tmp_path))
    config = replace(CONFIGURATIONS["overlap"], name=kind, flags=flags, env=FORKED)
    with serving(config, tmp_path / "server.log") as server:
        for name, constraint in CONSTRAINTS.items():
            ended = 0
            for penalties in PENALTIES:
                fields = {
                    "n": COUNT,
                    "temperature": 1.0,
                    "max_new_tokens": 150,
                    "logit_bias": {str(END): 2.0},  # so that most of them end
                    "proper_tokens": True,
                    **constraint,
                    **penalties,
                }
                body = {"input_ids": [300, 301, 302], "sampling_params": fields}
                for answer in post_ok(server, "/generate", body):
                    if answer["meta_info"]["finish_reason"]["type"] == "stop":
                        ended += 1
                        *tokens, last = answer["output_ids"]
                        assert last == END
                        assert_right(tokenizer, tokens, name)
            assert ended >= COUNT // 2, name


def with_end(text: str, end: str) -> str:
    """The tokenizer with the end of sequence at `END`, in place of the token there."""
    content = json.loads(text)
    vocab = content["model"]["vocab"]
    before = next(token for token, number in vocab.items() if number == END)
    vocab[before], vocab[end] = vocab[end], END
    for token in content["added_tokens"]:
        token["id"] = vocab.get(token["content"], token["id"])
    return json.dumps(content)


def assert_right(tokenizer: Tokenizer, tokens: list[int], constraint: str) -> None:
    """An output that has ended is its text's own encoding, and what its constraint allows."""
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=False).ids == tokens, text
    if constraint == "regex":
        assert re.fullmatch(CONSTRAINTS["regex"]["regex"], text), text
    if constraint == "schema":
        found = json.loads(text)
        assert list(found) == ["name", "code"]
        assert len(found["name"]) <= 12
        assert re.fullmatch("[ab]{2}-[0-9]{1,3}", found["code"]), text
