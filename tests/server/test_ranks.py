"""The ranks of one server: those that hold the same batch adjust it alike, bit for bit."""

from __future__ import annotations

import random

from server.configurations import on
from server.contract import check_together
from server.launch import Server
from server.prompts import mixed
from server.ranks import assert_ranks_agree, steps


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
