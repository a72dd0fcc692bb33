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
from server.launch import Server, serving
from sglang_lz.demo import MODEL_PATH

END = 2
"""The end of sequence of the demo model."""
OTHER_END, LETTER = 0, 70
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
    # The model's configuration names another end than the tokenizer; outputs end at both.
    about = json.loads((MODEL_PATH / "config.json").read_text()) | {"eos_token_id": OTHER_END}
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(about))
    (model / "model.safetensors").symlink_to(MODEL_PATH / "model.safetensors")
    paths = ("--model-path", str(model), "--tokenizer-path", str(tmp_path))
    flags = (*CONFIGURATIONS["overlap"].flags, *paths)
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
                        assert last in (END, OTHER_END)
                        assert_right(tokenizer, tokens, name)
            assert ended >= COUNT // 2, name
        assert_every_end_ends(server)


def assert_every_end_ends(server: Server) -> None:
    """An output ends at each of these tokens, with a constraint as without one, once it is
    complete, and not before."""
    (three,) = post_ok(server, "/v1/tokenize", {"model": "m", "prompt": "3"})["tokens"][-1:]
    digits: Any = {"regex": "[0-9]{3,9}", "max_new_tokens": 20, "temperature": 0}
    for end in (END, OTHER_END, LETTER, three):
        own = {} if end in (END, OTHER_END) else {"stop_token_ids": [end]}
        for proper in (False, True):
            fields = {**digits, **own, "logit_bias": {str(end): 100}, "proper_tokens": proper}
            body = {"input_ids": [300, 301, 302], "sampling_params": fields}
            answer = post_ok(server, "/generate", body)
            *tokens, last = answer["output_ids"]
            assert (last, answer["meta_info"]["finish_reason"]["type"]) == (end, "stop"), answer
            assert end not in tokens
            # As early as possible: a token may be two digits.
            assert re.fullmatch("[0-9]{3,4}", answer["text"]), (end, proper, answer["text"])
            body["sampling_params"] |= {"ignore_eos": True, "regex": "[0-9]{3}"}
            answer = post_ok(server, "/generate", body)
            assert re.fullmatch("[0-9]{3}", answer["text"]), (end, proper, answer["text"])


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
