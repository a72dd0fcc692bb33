"""The script that makes drafts for the demo model."""

import hashlib
import json
from pathlib import Path

import pytest

from bench.demo import drafts
from sglang_lz import demo


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"ROWS": 4, "LENGTH": 12, "BATCH": 2, "STEPS": 2, "BLOCK_STEPS": 2}
    for name, value in small.items():
        monkeypatch.setattr(drafts, name, value)


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
