"""Each rank's changes of the logits, as site/sitecustomize.py records them."""

from __future__ import annotations

import json
import time

from server.launch import Server

SETTLING_SECONDS = 60

# The hook, the batch rows with a penalty, and a digest of the logits after it.
Step = tuple[str, list[int], str]


def steps(server: Server, rank: int) -> list[Step]:
    """The penalised steps of a rank so far, oldest first."""
    path = server.notes / f"{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [tuple(json.loads(line)) for line in text.split("\n")[:-1]]  # the last may be half there


def assert_ranks_agree(server: Server, ranks: int) -> list[Step]:
    """Every rank took the same penalised steps and has the same logits, bit for bit.

    Returns:
        Those steps.
    """
    deadline = time.monotonic() + SETTLING_SECONDS
    taken = [steps(server, rank) for rank in range(ranks)]
    while len({len(own) for own in taken}) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)  # another rank may still write its last step
        taken = [steps(server, rank) for rank in range(ranks)]
    assert taken[0], "no penalised step was recorded"
    for rank, own in enumerate(taken):
        wrong = [i for i, pair in enumerate(zip(taken[0], own, strict=True)) if pair[0] != pair[1]]
        assert not wrong, f"rank {rank} differs in {len(wrong)} steps, the first {wrong[0]}"
    return taken[0]
