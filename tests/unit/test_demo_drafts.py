"""The script that makes drafts for the demo model."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bench.demo import drafts
from sglang_lz import demo


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"ROWS": 4, "LENGTH": 12, "BATCH": 2, "STEPS": 2, "BLOCK_STEPS": 2}
    for name, value in small.items():
        monkeypatch.setattr(drafts, name, value)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("kind", drafts.KINDS)
@pytest.mark.parametrize("training", [(), ("--untrained",)], ids=["trained", "untrained"])
def test_the_seed_decides(tmp_path: Path, kind: str, training: tuple[str, ...]) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        drafts.main([str(tmp_path / name), "--kind", kind, "--seed", str(seed), *training])
    drafts.main([str(tmp_path / "other"), "--kind", kind, *({"--untrained"} - set(training))])
    a, b, c, other = (
        hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).digest()
        for name in ("a", "b", "c", "other")
    )
    assert a == b
    assert len({a, c, other}) == 3
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    target = json.loads((demo.MODEL_PATH / "config.json").read_text())
    for name in ("vocab_size", "hidden_size", "eos_token_id"):
        assert config[name] == target[name]
    tokenizer = (tmp_path / "a" / "tokenizer.json").read_bytes()
    assert tokenizer == (demo.MODEL_PATH / "tokenizer.json").read_bytes()


def test_a_standalone_draft_is_near_the_target(tmp_path: Path) -> None:
    drafts.make("standalone", tmp_path)
    target = weights(demo.MODEL_PATH)
    for name, weight in weights(tmp_path).items():
        original = target[name].float()
        noise = (weight - original).std(correction=0) / original.std(correction=0)
        assert drafts.NOISE / 2 < noise < drafts.NOISE * 2


def test_eagle_shares_the_targets_embedding(tmp_path: Path) -> None:
    drafts.make("eagle", tmp_path)
    names = set(weights(tmp_path))
    assert {"fc.weight", "fc.bias", "layers.0.self_attn.q_proj.bias"} <= names
    assert not any("embed" in name or "input_layernorm" in name for name in names)


def test_eagle3_maps_its_tokens_to_the_targets(tmp_path: Path) -> None:
    drafts.make("eagle3", tmp_path)
    made = weights(tmp_path)
    hot = made["d2t"] + torch.arange(drafts.HOT_TOKENS)
    assert made["d2t"].dtype == torch.int64
    assert (hot.diff() > 0).all()
    assert hot[-1] < 2048
    assert made["lm_head.weight"].shape == (drafts.HOT_TOKENS, 192)
    assert made["midlayer.self_attn.q_proj.weight"].shape == (192, 384)


@pytest.mark.parametrize(
    ("kind", "queries"), [("dflash", drafts.BLOCK), ("dspark", drafts.BLOCK - 1)]
)
def test_blocks_borrow_the_targets_embedding_and_head(
    tmp_path: Path, kind: str, queries: int
) -> None:
    drafts.make(kind, tmp_path)
    made = weights(tmp_path)
    assert not any("embed" in name or "lm_head" in name for name in made)
    assert made["fc.weight"].shape == (192, 384)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["block_size"] == queries
    # SGLang keeps no states of the target's last layer for a draft.
    assert config["dflash_config"]["target_layer_ids"] == [0, 1]
