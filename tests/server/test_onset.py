"""`lz_onset` (docs/SPEC.md section 9): text in which nothing has repeated is left as it is.

Position by position test_modes.py holds the onset to the contract.
"""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oracle import copies
from server.client import OFF, Lz, post_ok, request_body
from server.configurations import SPECULATION, on
from server.contract import TOLERANCE
from server.launch import Server, model_path
from sglang_lz.demo import REASONER_PATH

BENCHMARKS = Path(__file__).parents[2] / "bench" / "repetition"
NEW_TOKENS = 120
ONSETS = (1, 2, 3)


def prompts(model: Path, file: str) -> list[list[int]]:
    """A benchmark's prompts, as the model's chat template writes them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [json.loads(line)["prompt"] for line in (BENCHMARKS / file).read_text().splitlines()]
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


def generated(server: Server, bodies: list[dict[str, object]]) -> list[list[int]]:
    """The output tokens of each request; all are sent at once."""
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda body: post_ok(server, "/generate", body), bodies))
    return [answer["output_ids"] for answer in answers]


def is_near_tie(server: Server, tokens: list[int], two: set[int | None]) -> bool:
    """Whether these are the likeliest next tokens, and other batches may round them the other way.

    Args:
        server: it is asked without a penalty.
        tokens: what comes before.
        two: the two tokens; None for the end of an output.
    """
    body = request_body(tokens, 1, OFF) | {"top_logprobs_num": 2, "return_logprob": True}
    ((first, second),) = post_ok(server, "/generate", body)["meta_info"]["output_top_logprobs"]
    return abs(first[0] - second[0]) < TOLERANCE and {first[1], second[1]} == two


def check_until_something_repeats(server: Server, asked: list[list[int]]) -> dict[int, int]:
    """Compare greedy outputs with those without a penalty, token for token.

    Returns:
        By onset, in how many outputs the penalty set in and changed something.
    """
    variants = (OFF, *(Lz(0.15, onset=onset) for onset in ONSETS))
    bodies = [request_body(prompt, NEW_TOKENS, lz) for lz in variants for prompt in asked]
    plain = [{name: body[name] for name in ("input_ids", "sampling_params")} for body in bodies]
    found = generated(server, plain)
    unpenalised = found[: len(asked)]
    changed = dict.fromkeys(ONSETS, 0)
    for i, onset in enumerate(ONSETS, 1):
        outputs = found[i * len(asked) : (i + 1) * len(asked)]
        for prompt, before, after in zip(asked, unpenalised, outputs, strict=True):
            if before == after:
                continue
            same, two = next(
                (k, set(pair))
                for k, pair in enumerate(itertools.zip_longest(before, after))
                if pair[0] != pair[1]
            )
            if same < reached_after(before, onset):
                assert is_near_tie(server, prompt + before[:same], two), (prompt, onset, same)
            else:
                changed[onset] += 1
    return changed


@on("overlap", "ngram", "dflash", "dspark")
def test_greedy_output_is_unchanged_until_text_repeats(server: Server) -> None:
    """Over the demo model's prompts, which nearly always loop."""
    asked = prompts(model_path(), "prompts.jsonl")
    asked = asked[:: 3 if server.config.name in SPECULATION else 2]  # speculation is slower here
    assert min(check_until_something_repeats(server, asked).values()) > len(asked) // 2


@pytest.mark.full
@on("reasoner")
def test_greedy_answers_are_unchanged_until_text_repeats(
    server: Server,
) -> None:
    """Over the pocket reasoner's puzzles, which mostly do not loop."""
    asked = prompts(REASONER_PATH, "pocket.jsonl")[::4]
    assert min(check_until_something_repeats(server, asked).values()) > 0
