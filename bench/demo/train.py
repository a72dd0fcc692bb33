"""Train the demo model from nothing: `python -m bench.demo.train --out DIR`.

This makes a Qwen2 of 1.6 million parameters, a byte-level BPE tokenizer and a ChatML template from
the text that comes with the running CPython (see `corpus`). It needs torch and transformers, and
takes minutes on two CPU cores. It is seeded: the same torch build, CPU model and thread count give
the same weights.

The model is undertrained on purpose. If a model this small is trained a few times longer, it
memorizes its text and hardly loops.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import models, pre_tokenizers, trainers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from . import corpus

VOCAB_SIZE = 2048
MAX_POSITIONS = 2048
CONTEXT = 256
BATCH = 4
STEPS = 400
PEAK_LEARNING_RATE = 2e-3

# int64 tokens and the target token after each of them, both (rows, length); -100 means no target.
Batch = tuple[torch.Tensor, torch.Tensor]

# The format of `corpus.chat` as a template. There is no default system message, because the corpus
# has none.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Qwen2Tokenizer:
    """Train a byte-level BPE of `vocab_size` ids, special tokens first. It can encode any bytes.

    The normalizer and the pre-tokenizer are Qwen2's, because loaders choose them by the model's
    type.
    """
    backend = Qwen2Tokenizer().backend_tokenizer
    backend.model = models.BPE()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(  # type: ignore[no-untyped-call]
            vocab_size=vocab_size,
            special_tokens=[corpus.END_OF_TEXT, corpus.IM_START, corpus.IM_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    learned = json.loads(backend.to_str())["model"]
    return Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(merge) for merge in learned["merges"]],
        eos_token=corpus.IM_END,
        additional_special_tokens=[corpus.IM_START, corpus.IM_END],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
    )


def small_qwen2(
    tokenizer: Qwen2Tokenizer,
    *,
    width: int,
    feed_forward: int,
    layers: int,
    initializer_range: float,
    eos_token_id: int,
) -> Qwen2ForCausalLM:
    """Return a float32 Qwen2 with random weights from torch's global generator.

    Heads have width 32. There are 2 key/value heads, so that two tensor-parallel ranks can share
    them.
    """
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def new_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """Return the demo model, untrained."""
    return small_qwen2(
        tokenizer,
        width=192,
        feed_forward=512,
        layers=3,
        initializer_range=0.07,
        eos_token_id=tokenizer.convert_tokens_to_ids(corpus.IM_END),
    )


def batches(tokenizer: Qwen2Tokenizer, chapters: list[corpus.Topic], seed: int) -> Iterator[Batch]:
    """Yield batches indefinitely. Each row of CONTEXT tokens is filled with successive examples."""
    texts = corpus.examples(chapters, seed)
    width = CONTEXT + 1
    while True:
        rows = []
        for _ in range(BATCH):
            row: list[int] = []
            while len(row) < width:
                row += tokenizer.encode(next(texts), truncation=True, max_length=width)
            rows.append(row[:width])
        tokens = torch.tensor(rows)
        yield tokens[:, :-1], tokens[:, 1:]


def train(
    model: Qwen2ForCausalLM, data: Iterator[Batch], steps: int, report_every: int = 25
) -> float:
    """Train in place for `steps` batches; return the mean loss of the last tenth in nats/token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95))
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm_up, max(0.1, 1 - step / steps)),
    )
    model.train()
    losses: list[float] = []
    start = time.monotonic()
    for step in range(1, steps + 1):
        tokens, wanted = next(data)
        logits = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % report_every == 0 or step == steps:
            elapsed = time.monotonic() - start
            print(f"step {step}/{steps}  loss {losses[-1]:.3f}  {elapsed:.0f} s", flush=True)
    tail = losses[-max(1, steps // 10) :]
    return sum(tail) / len(tail)


def save(
    model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, out: Path, record: dict[str, object]
) -> None:
    """Write a `--model-path` folder: bf16 weights, configuration, tokenizer and training record."""
    out.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo.train",
        description="Train the demo model on the documentation that this Python carries.",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="batches to train on (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="torch threads; another number gives slightly other weights (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    chapters = corpus.load()
    tokenizer = train_tokenizer(
        ("\n\n".join(chapter.paragraphs) for chapter in chapters), VOCAB_SIZE
    )
    model = new_model(tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(chapters)} topics, {len(tokenizer)} ids, {parameters / 1e6:.2f} M parameters")
    loss = train(model, batches(tokenizer, chapters, arguments.seed), arguments.steps)
    record: dict[str, object] = {
        "steps": arguments.steps,
        "seed": arguments.seed,
        "tokens": arguments.steps * BATCH * CONTEXT,
        "final_loss_nats_per_token": round(loss, 4),
        "parameters": parameters,
        "corpus": "pydoc_data.topics, PSF-2.0",
        "corpus_sha256": corpus.sha256(chapters),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": arguments.threads,
    }
    save(model, tokenizer, arguments.out, record)
    print(f"wrote {arguments.out}: final loss {loss:.3f} nats per token")


if __name__ == "__main__":
    main()
