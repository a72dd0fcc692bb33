"""The committed demo model, and the script that makes it."""

import hashlib
import json
import struct
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen2ForCausalLM,
)

from bench.demo import corpus, train
from bench.repetition.detector import is_degenerate
from sglang_lz import demo
from short_trainings import trained_twice

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(demo.MODEL_PATH)


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return AutoModelForCausalLM.from_pretrained(demo.MODEL_PATH, dtype=torch.float32)


@pytest.fixture(scope="module")
def config() -> dict[str, object]:
    return json.loads((demo.MODEL_PATH / "config.json").read_text())


@pytest.fixture(scope="module")
def tensors() -> dict[str, dict[str, object]]:
    """The weights' own table: name to dtype, shape and place in the file."""
    with (demo.MODEL_PATH / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        table = json.loads(file.read(size))
    table.pop("__metadata__", None)
    return table


def test_sizes() -> None:
    files = list(demo.MODEL_PATH.iterdir())
    assert (demo.MODEL_PATH / "model.safetensors").stat().st_size <= 5 * MEGABYTE
    assert sum(file.stat().st_size for file in files) <= 6 * MEGABYTE


def test_only_formats_that_run_no_code() -> None:
    assert {file.suffix for file in demo.MODEL_PATH.iterdir()} == {
        ".json",
        ".jinja",
        ".md",
        ".safetensors",
    }


def test_is_a_qwen2_whose_heads_two_ranks_can_share(config: dict[str, object]) -> None:
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["model_type"] == "qwen2"
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    assert heads % 2 == 0
    assert kv_heads % 2 == 0
    assert config["hidden_size"] // heads in (32, 64)
    assert config["max_position_embeddings"] == 2048


def test_weights_are_bf16_and_as_many_as_the_record_says(
    tensors: dict[str, dict[str, object]],
) -> None:
    assert {tensor["dtype"] for tensor in tensors.values()} == {"BF16"}
    numbers = sum(torch.Size(tensor["shape"]).numel() for tensor in tensors.values())
    assert numbers == json.loads((demo.MODEL_PATH / "training.json").read_text())["parameters"]


def test_vocabulary(config: dict[str, object], tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(tokenizer) == config["vocab_size"] == 2048
    assert set(tokenizer.get_vocab().values()) == set(range(2048))
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == config["eos_token_id"]
    assert tokenizer.pad_token_id == config["pad_token_id"]


# Qwen2's tokenizer normalizes to NFC. The newest Unicode's rules are not the same everywhere, so
# only the basic plane is drawn from.
@given(st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF)) | st.just("🙂\0\r\n"))
def test_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    text = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_chat_template_is_what_it_was_trained_on(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered + corpus.END_OF_TEXT == corpus.chat("Hi", "Hello")
    opened = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert opened == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(opened).count(tokenizer.eos_token_id) == 1


def test_is_trained(tokenizer: PreTrainedTokenizerBase, model: Qwen2ForCausalLM) -> None:
    """A uniform guess costs log(2048) = 7.6 nats a token; half of that takes real training."""
    (chapter,) = (chapter for chapter in corpus.load() if chapter.name == "try")
    text = corpus.chat("Tell me about try.", "\n\n".join(chapter.paragraphs[:4]))
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        assert model(ids, labels=ids).loss.item() < 7.6 / 2


def test_is_undertrained_so_that_greedy_decoding_loops(
    tokenizer: PreTrainedTokenizerBase, model: Qwen2ForCausalLM
) -> None:
    messages = [{"role": "user", "content": "List the keywords of the language."}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([tokenizer.encode(prompt)])
    answer = model.generate(ids, do_sample=False, max_new_tokens=120)[0, ids.shape[1] :].tolist()
    assert is_degenerate(answer)


@pytest.mark.parametrize(
    ("run", "path"),
    [("demo", demo.MODEL_PATH), ("pocket", demo.REASONER_PATH)],
)
def test_the_committed_runs_are_of_these_models(run: str, path: Path) -> None:
    result = json.loads((ROOT / "bench/results" / run / "result.json").read_text())
    weights = (path / "model.safetensors").read_bytes()
    assert result["run"]["model_sha256"] == hashlib.sha256(weights).hexdigest()


def test_examples_are_seeded_and_mostly_chat() -> None:
    chapters = corpus.load()

    def some(seed: int) -> list[str]:
        texts = corpus.examples(chapters, seed)
        return [next(texts) for _ in range(400)]

    assert some(1) == some(1) != some(2)
    assert 0.65 < sum(text.startswith(corpus.IM_START) for text in some(1)) / 400 < 0.85


def test_the_corpus_holds_no_ruled_lines_and_no_broken_sentences() -> None:
    paragraphs = [text for chapter in corpus.load() for text in chapter.paragraphs]
    assert all(text.strip() for text in paragraphs)
    lines = [line.strip() for text in paragraphs for line in text.splitlines()]
    assert not any(set(line) <= set("=-+| ") and len(line) > 4 for line in lines)
    assert any(len(text) > 500 and "\n" not in text for text in paragraphs)
    assert any(text.startswith("   >>> ") and "\n" in text for text in paragraphs)


def test_two_short_trainings_with_one_seed_give_the_same_loadable_model(tmp_path: Path) -> None:
    run = trained_twice(train.main, tmp_path, demo.MODEL_PATH)
    model = AutoModelForCausalLM.from_pretrained(run)
    assert type(model) is Qwen2ForCausalLM
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 2048)
