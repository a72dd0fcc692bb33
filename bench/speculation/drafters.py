"""What a drafter that knows the penalty would gain: drafters played on recorded answers.

Verification is lossless: whatever is drafted, the greedy answer is the same. So a drafter can be
judged on a recorded answer, exactly and without a server: its drafts are accepted as far as they
are the answer's next tokens. Three are compared, each with drafts from the request's own text:

- `plain`: a tree of the likeliest drafts. A token's probability is that of an n-gram model of the
  request's text so far, prompt included, with orders blended by Witten and Bell's method.
- `penalised`: the same, with the LZ penalty on the model's log-probabilities at every node, as the
  server applies it to the logits of that node.
- `best source`: the drafts of the earlier place of the same newest token that turns out best,
  which knows the answer: the most that a choice of one place gains. A tree may join several.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.speculation.steps import onset_reached
from sglang_lz.reference.codelength import saved_bits
from sglang_lz.window import SHORTEST_LOOP

Tokens = NDArray[np.int64]

LONGEST_CONTEXT = 8
BUFFER_SIZE = 32
WINDOW_SIZE = 512
_SCORE = itemgetter(1)


@dataclass(frozen=True)
class Penalty:
    """The LZ penalty at a node of a draft tree, onset reached (docs/SPEC.md sections 2 and 9).

    Attributes:
        alpha: `lz_penalty`.
        onset: `lz_onset`; 0 for the paper's penalty.
        vocab_size: V.
    """

    alpha: float
    onset: int
    vocab_size: int

    def of(self, tokens: Tokens, runs: Tokens) -> dict[int, float]:
        """What is taken from the logit of each token, `marginal` cost.

        Args:
            tokens: the visible tokens, newest first, int64 [seen].
            runs: column k - 1 has the run of period k within them, int64 [seen].
        """
        seen = min(len(tokens), WINDOW_SIZE)
        if not seen:
            return {}
        # The match of column i ends at the token of that column, at distance i + 1, period i.
        match = np.minimum(np.concatenate(([0], runs[: seen - 1])), BUFFER_SIZE)
        match = np.minimum(match, seen - np.arange(seen))
        saved = saved_bits(
            torch.from_numpy(match)[None],
            torch.tensor([seen]),
            self.vocab_size,
            torch.tensor([False]),
        )[0].numpy()
        if self.onset:
            period = np.arange(1, seen + 1)
            run = np.where(period < WINDOW_SIZE, runs[:seen], 0)
            copies = np.where(run >= SHORTEST_LOOP, run // period, 0)
            saved = saved * np.maximum(1, copies - self.onset + 1)
        found: dict[int, float] = {}
        for token, bits in zip(tokens[:seen].tolist(), saved.tolist(), strict=True):
            found[token] = max(found.get(token, 0.0), self.alpha * bits)
        return found


def longer_by(tokens: Tokens, runs: Tokens, token: int) -> tuple[Tokens, Tokens]:
    """The text and its runs, newest first, after one more token."""
    grown = np.where(tokens == token, runs + 1, 0)
    return np.concatenate(([token], tokens)), np.concatenate((grown, [0]))


def next_probabilities(tokens: Tokens, runs: Tokens) -> dict[int, float]:
    """What an n-gram model of a text says of its next token, by token.

    Args:
        tokens: the text, newest first, int64 [length].
        runs: column k - 1 has the run of period k, int64 [length].
    """
    found: dict[int, float] = {}
    left = 1.0
    # From the longest context down: each order leaves T / (N + T) to the shorter ones.
    for order in range(min(LONGEST_CONTEXT, int(runs.max(initial=0))), -1, -1):
        follower, count = np.unique(tokens[runs >= order], return_counts=True)
        if not len(follower):
            continue
        total = int(count.sum()) + len(follower)
        for token, times in zip(follower.tolist(), count.tolist(), strict=True):
            found[token] = found.get(token, 0.0) + left * times / total
        left *= len(follower) / total
    return found


@dataclass(frozen=True)
class Text:
    """The text that a node of a draft tree has behind it.

    Attributes:
        tokens: newest first, int64 [length].
        runs: column k - 1 has the run of period k, int64 [length].
        visible: how many of the newest tokens the penalty sees.
    """

    tokens: Tokens
    runs: Tokens
    visible: int

    @classmethod
    def of(cls, prompt: Sequence[int]) -> Text:
        """The text of a prompt, of which the penalty sees nothing."""
        text = cls(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
        for token in prompt:
            text = text.then(token)
        return Text(text.tokens, text.runs, 0)

    def then(self, token: int) -> Text:
        """This text and one token more."""
        return Text(*longer_by(self.tokens, self.runs, token), self.visible + 1)

    def scores(self, penalty: Penalty | None) -> dict[int, float]:
        """The log-probability of each next token that a drafter proposes."""
        found = next_probabilities(self.tokens, self.runs)
        scores = {token: math.log(share) for token, share in found.items()}
        if penalty is None:
            return scores
        seen = self.visible
        lowered = penalty.of(
            self.tokens[:seen], np.minimum(self.runs[:seen], seen - 1 - np.arange(seen))
        )
        scores = {token: score - lowered.get(token, 0.0) for token, score in scores.items()}
        norm = math.log(sum(map(math.exp, scores.values())))
        return {token: score - norm for token, score in scores.items()}


def likeliest(text: Text, future: Sequence[int], drafts: int, penalty: Penalty | None) -> int:
    """How many next tokens stand in a tree of the likeliest drafts.

    Args:
        text: the text so far.
        future: what comes next.
        drafts: nodes of the tree beside its root.
        penalty: what the drafter applies to its own proposals; None for nothing.
    """
    number = itertools.count()
    # By log-probability; a node knows its parent, and how much of the future it ends (0: none).
    heap: list[tuple[float, int, Text, int, int]] = []

    def propose(score: float, node: Text, right: int | None) -> None:
        for token, more in heapq.nlargest(drafts, node.scores(penalty).items(), key=_SCORE):
            goes_on = right is not None and right < len(future) and future[right] == token
            ends = right + 1 if goes_on and right is not None else 0
            heapq.heappush(heap, (-score - more, next(number), node, token, ends))

    propose(0.0, text, 0)
    best = 0
    for left in reversed(range(drafts)):
        if not heap:
            break
        score, _, parent, token, ends = heapq.heappop(heap)
        best = max(best, ends)
        if left:
            propose(-score, parent.then(token), ends or None)
    return best


def best_source(text: Text, future: Sequence[int], drafts: int) -> int:
    """How many next tokens the best earlier place of the newest token goes on with.

    Args:
        text: the text so far.
        future: what comes next.
        drafts: the most that are proposed.
    """
    ids = np.concatenate((text.tokens[::-1], np.asarray(future[:drafts], np.int64)))
    length, periods = len(text.tokens), np.flatnonzero(text.runs >= 1) + 1
    for place in range(length, len(ids)):
        periods = periods[ids[place - periods] == ids[place]]
        if not len(periods):
            return place - length
    return len(ids) - length


def play(
    prompt: Sequence[int],
    tokens: Sequence[int],
    start: int,
    drafter: Callable[[Text, Sequence[int]], int],
) -> int:
    """The verify steps of an answer from its first `start` tokens to its end.

    Args:
        prompt: token ids.
        tokens: the answer's token ids.
        start: at least 1, since the first token is the prefill's.
        drafter: says how many tokens of the future its drafts hold.
    """
    text = Text.of(prompt)
    steps, done = 0, 0
    for number, token in enumerate(tokens):
        if number == max(done, start):
            done = number + drafter(text, tokens[number:]) + 1
            steps += 1
        text = text.then(token)
    return steps


def drafters(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    penalty: Penalty,
    drafts: int,
) -> dict[str, Any]:
    """The accept length of each drafter over the answers, from their onset on.

    Args:
        prompts: token ids of each prompt.
        answers: token ids of each answer.
        penalty: that of the answers.
        drafts: nodes of a draft tree beside its root.

    Returns:
        Tokens, and verify steps and accept length of each drafter; None without a token.
    """
    plays: dict[str, Callable[[Text, Sequence[int]], int]] = {
        "plain": lambda text, future: likeliest(text, future, drafts, None),
        "penalised": lambda text, future: likeliest(text, future, drafts, penalty),
        "best source": lambda text, future: best_source(text, future, drafts),
    }
    count, steps = 0, dict.fromkeys(plays, 0)
    for prompt, tokens in zip(prompts, answers, strict=True):
        start = onset_reached(tokens, penalty.onset) if penalty.onset else 1
        if start is None:
            continue
        count += len(tokens) - start
        for name, drafter in plays.items():
            steps[name] += play(prompt, tokens, start, drafter)
    lengths = {name: round(count / taken, 3) if taken else None for name, taken in steps.items()}
    return {"tokens": count, "verify_steps": steps, "accept_length": lengths}
