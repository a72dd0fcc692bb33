"""`lz_onset` (docs/SPEC.md section 9): text in which nothing has repeated is left as it is.

Position by position test_modes.py holds the onset to the contract.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from oracle import copies
from server.client import OFF, Lz, base_rows, post_ok, request_body
from server.configurations import on
from server.contract import TOLERANCE
from server.launch import Server, model_path

PROMPTS = Path(__file__).parents[2] / "bench" / "repetition" / "prompts.jsonl"
NEW_TOKENS = 120
ONSETS = (1, 2, 3)


def prompts() -> list[list[int]]:
    """The demo model's prompts of the benchmarks, as its chat template writes them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path())
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    chats = ([{"role": "user", "content": text}] for text in texts)
    return [
        list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
        for chat in chats
    ]


def reached_after(outputs: list[int], onset: int) -> int:
    """After how many output tokens the onset is reached; all of them if it never is."""
    for count in range(len(outputs)):
        if max(copies(outputs[:count], Lz().window).values(), default=0) >= onset:
            return count
    return len(outputs)


@on("overlap", "ngram")
def test_greedy_output_is_that_without_a_penalty_until_something_repeats(server: Server) -> None:
    """Token for token, over the demo model's prompts; and then the penalty sets in."""
    asked = prompts()
    variants = (OFF, *(Lz(0.15, onset=onset) for onset in ONSETS))
    bodies = [request_body(prompt, NEW_TOKENS, lz) for lz in variants for prompt in asked]
    plain = [{name: body[name] for name in ("input_ids", "sampling_params")} for body in bodies]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda body: post_ok(server, "/generate", body), plain))
    found = [answer["output_ids"] for answer in answers]
    unpenalised = found[: len(asked)]
    for i, onset in enumerate(ONSETS, 1):
        changed = 0
        outputs = found[i * len(asked) : (i + 1) * len(asked)]
        for prompt, before, after in zip(asked, unpenalised, outputs, strict=True):
            untouched = reached_after(before, onset)
            same = next(
                (k for k, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]),
                None,
            )
            if same is None:
                continue
            if same < untouched:
                # Two tokens that batches of other sizes may round into another order.
                row = base_rows(server, prompt, [*before[:same], 0])[-1]
                assert abs(row[before[same]] - row[after[same]]) < TOLERANCE, (prompt, same)
            changed += same >= untouched
        assert changed > len(asked) // 2, onset
