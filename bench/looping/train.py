"""Train the looping models from nothing: `python -m bench.looping train prose --out DIR`.

Both are small Qwen2 models, as those of `sglang_lz.demo` are, with other tokenizers, sizes and
texts. One row in three repeats one of 24 passages of 60 to 400 tokens over and over, to make the
model learn these by heart and go on with them for ever. Those are to be its loops of long periods;
its short ones come by themselves, because it is undertrained.
"""

from __future__ import annotations

import hashlib
import platform
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2Tokenizer

from bench.demo.corpus import END_OF_TEXT
from bench.demo.train import Batch, save, small_qwen2, train, train_tokenizer
from bench.looping import corpus

CONTEXT = 768
BATCH = 2
REPEATED = 1 / 3
PERIODS = (60, 100, 150, 200, 300, 400)
OF_PERIOD = 4


@dataclass(frozen=True)
class Size:
    """What tells the models from each other."""

    vocabulary: int
    layers: int
    steps: int


SIZES = {"prose": Size(8192, 4, 450), "code": Size(4096, 3, 900)}


def units(texts: Sequence[str], tokenizer: Qwen2Tokenizer, seed: int) -> list[tuple[int, str]]:
    """Return the passages that the model learns by heart, each after its length in tokens.

    They begin with a line of the text and end with a blank line; `OF_PERIOD` of each of `PERIODS`.
    """
    rng = random.Random(f"units {seed}")
    found: list[tuple[int, str]] = []
    for period in sorted(PERIODS * OF_PERIOD):
        ids: list[int] = []
        while len(ids) < period:
            text = rng.choice(texts)
            begin = text.find("\n", rng.randrange(len(text) or 1)) + 1
            ids = tokenizer.encode(text[begin : begin + 12 * period].lstrip())
        found.append((period, tokenizer.decode(ids[: period - 1]).rstrip() + "\n\n"))
    return found


def batches(tokens: list[int], looped: list[list[int]], seed: int) -> Iterator[Batch]:
    """Yield rows of CONTEXT tokens without end: slices of the text, `REPEATED` of them of a loop.

    Args:
        tokens: the text.
        looped: each unit over and over, at least two rows long.
        seed: decides which slices.
    """
    rng = random.Random(seed)
    width = CONTEXT + 1

    def row() -> list[int]:
        source = rng.choice(looped) if rng.random() < REPEATED else tokens
        start = rng.randrange(len(source) - width)
        return source[start : start + width]

    while True:
        rows = torch.tensor([row() for _ in range(BATCH)])
        yield rows[:, :-1], rows[:, 1:]


def make(name: str, out: Path, *, steps: int | None = None, seed: int = 0) -> None:
    """Train the model `name` of `SIZES` on one core, and write what `--model-path` takes."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    size = SIZES[name]
    steps = steps or size.steps
    texts = corpus.TEXTS[name]()
    tokenizer = train_tokenizer(texts, size.vocabulary)
    tokens = tokenizer.encode(END_OF_TEXT.join(texts))
    looped = [
        tokenizer.encode(text * (3 * CONTEXT // period))
        for period, text in units(texts, tokenizer, seed)
    ]
    model = small_qwen2(
        tokenizer,
        width=192,
        feed_forward=512,
        layers=size.layers,
        initializer_range=0.05,
        eos_token_id=tokenizer.eos_token_id,
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(tokens):,} tokens, {len(tokenizer)} ids, {parameters / 1e6:.2f} M parameters")
    began = time.monotonic()
    loss = train(model, batches(tokens, looped, seed), steps)
    record: dict[str, object] = {
        "corpus": name,
        "corpus_sha256": corpus.sha256(texts),
        "corpus_tokens": len(tokens),
        "vocabulary": len(tokenizer),
        "parameters": parameters,
        "steps": steps,
        "seed": seed,
        "tokens": steps * BATCH * CONTEXT,
        "final_loss_nats_per_token": round(loss, 4),
        "seconds": round(time.monotonic() - began),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    save(model, tokenizer, out, record)
    weights = (out / "model.safetensors").read_bytes()
    print(f"loss {loss:.3f}; sha256 of the weights: {hashlib.sha256(weights).hexdigest()}")
