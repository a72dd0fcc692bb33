"""Train the pocket reasoner from nothing: `python -m bench.demo.train_reasoner --out DIR`.

This makes a Qwen2 of 0.9 million parameters that solves the puzzles of `puzzles` step by step, in
the chat format of the demo model. It is trained mostly on small problems and tested on larger ones,
so it solves some, fails others, and sometimes loses its place and starts to loop. It is seeded in
the same way as `train`.
"""

import argparse
import itertools
import platform
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from . import puzzles
from .corpus import chat
from .train import Batch, save, small_qwen2, train, train_tokenizer

VOCAB_SIZE = 512
CONTEXT = 512
BATCH = 4
STEPS = 3000
NOT_WANTED = -100


def new_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """Return the pocket reasoner, untrained."""
    return small_qwen2(
        tokenizer,
        width=128,
        feed_forward=384,
        layers=4,
        initializer_range=0.05,
        eos_token_id=tokenizer.eos_token_id,
    )


def batches(tokenizer: Qwen2Tokenizer, seed: int) -> Iterator[Batch]:
    """Yield batches indefinitely. Each row of CONTEXT tokens is filled with successive exchanges.

    Only the solutions are targets, because questions cannot be predicted.
    """
    source = puzzles.training(seed)
    while True:
        rows = []
        for _ in range(BATCH):
            tokens: list[int] = []
            wanted: list[int] = []
            while len(tokens) < CONTEXT:
                more = exchange(tokenizer, next(source))
                tokens += more[0]
                wanted += more[1]
            rows.append((tokens[:CONTEXT], wanted[:CONTEXT]))
        yield torch.tensor([tokens for tokens, _ in rows]), torch.tensor([w for _, w in rows])


def exchange(tokenizer: Qwen2Tokenizer, puzzle: puzzles.Puzzle) -> tuple[list[int], list[int]]:
    """Return the tokens of question and solution except the last, and the target after each."""
    whole = chat(puzzle.question, puzzle.solution)
    tokens = tokenizer.encode(whole)
    asked = len(tokenizer.encode(whole[: whole.rindex(puzzle.solution)]))
    return tokens[:-1], [NOT_WANTED] * (asked - 1) + tokens[asked:]


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo.train_reasoner",
        description="Train the pocket reasoner on puzzles that this command makes up.",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="batches to train on (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="torch threads; another number gives slightly other weights (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    sample = itertools.islice(puzzles.training(arguments.seed), 20_000)
    tokenizer = train_tokenizer((chat(p.question, p.solution) for p in sample), VOCAB_SIZE)
    model = new_model(tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(tokenizer)} ids, {parameters / 1e6:.2f} M parameters")
    loss = train(model, batches(tokenizer, arguments.seed), arguments.steps)
    record: dict[str, object] = {
        "steps": arguments.steps,
        "seed": arguments.seed,
        "tokens": arguments.steps * BATCH * CONTEXT,
        "final_loss_nats_per_token": round(loss, 4),
        "parameters": parameters,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": arguments.threads,
    }
    save(model, tokenizer, arguments.out, record)
    print(f"wrote {arguments.out}: final loss {loss:.3f} nats per token")


if __name__ == "__main__":
    main()
