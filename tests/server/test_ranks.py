"""The ranks of one server: those that hold the same batch adjust it alike, bit for bit."""

from __future__ import annotations

import json
import random
import time

from server.configurations import on
from server.contract import check_together
from server.launch import Server
from server.prompts import mixed

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


@on("tp2", "eagle-tp2", "dflash-tp2", "dspark-tp2")
def test_tensor_parallel_ranks_adjust_alike(server: Server) -> None:
    """Each rank samples by itself, so logits that differ in one bit could give other tokens."""
    rng = random.Random("ranks")
    before = len(steps(server, 0))
    for new_tokens in (24, 48, 96):  # more, should the first end before the last come
        check_together(server, mixed(rng, 8, 40, new_tokens), f"{server.config.name}: ranks")
        taken = assert_ranks_agree(server, ranks=2)[before:]
        if len(taken) >= 12 and max(len(rows) for _, rows, _ in taken) >= 4:
            break
    else:
        raise AssertionError("too few penalised requests met in a batch")
    hooks = {hook for hook, _, _ in taken}
    assert hooks == ({"apply", "verify"} if server.config.draft else {"apply"})
