"""The committed demo model, and the script that makes it."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen2ForCausalLM,
)

from bench.demo import corpus, train
from bench.models.detector import is_degenerate
from sglang_lz import demo

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(demo.MODEL_PATH)


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return AutoModelForCausalLM.from_pretrained(demo.MODEL_PATH, dtype=torch.float32)


def test_the_chat_template_matches_the_training_text(tokenizer: PreTrainedTokenizerBase) -> None:
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


def test_two_short_trainings_with_one_seed_give_the_same_loadable_model(tmp_path: Path) -> None:
    runs = [tmp_path / "first", tmp_path / "second"]
    threads = torch.get_num_threads()
    try:
        for run in runs:
            train.main(["--out", str(run), "--steps", "2"])
    finally:
        torch.set_num_threads(threads)
    first, second = ({file.name: file.read_bytes() for file in run.iterdir()} for run in runs)
    assert first == second
    assert set(first) == {file.name for file in demo.MODEL_PATH.iterdir()} - {"README.md"}
    model = AutoModelForCausalLM.from_pretrained(runs[0])
    assert type(model) is Qwen2ForCausalLM
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 2048)
