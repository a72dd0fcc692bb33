"""Generation with transformers, every row under a setting of its own.

An output is that without a penalty up to its first loop, so a row may begin with tokens that are
known. Sampling draws the same noise for an item's position under every setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from bench.onset import rule
from bench.onset.rule import Setting

ATTENTION = "grouped"
"""The attention to load a model with: keys and values are not copied for each head of a group."""
BATCH = 96
"""Rows generated together."""
SHRINK = 0.75
"""Finished rows are dropped from a batch once no more than this share goes on."""


@dataclass(frozen=True)
class Row:
    """An output to generate.

    Attributes:
        item: which prompt it answers.
        known: the tokens that it begins with.
        setting: its penalty.
    """

    item: int
    known: list[int]
    setting: Setting


@dataclass(frozen=True)
class Limits:
    """When outputs end, and how they are sampled.

    Attributes:
        tokens: the most tokens of an output.
        end: the token that ends it and is no part of it; None to go on past it.
        temperature: 0 for greedy.
    """

    tokens: int
    end: int | None
    temperature: float


def generate(
    model: Any, prompts: Sequence[Sequence[int]], rows: Sequence[Row], limits: Limits, label: str
) -> list[list[int]]:
    """Return the output of each row, the known tokens included.

    Args:
        model: a causal language model of transformers, on the CPU.
        prompts: the token ids of each item.
        rows: what to generate.
        limits: when outputs end.
        label: what the progress bar is called.
    """
    found: list[list[int]] = [[] for _ in rows]
    # Rows of about one length together, since padding costs time.
    order = sorted(range(len(rows)), key=lambda i: len(prompts[rows[i].item]) + len(rows[i].known))
    for start in tqdm(range(0, len(order), BATCH), desc=label):
        some = order[start : start + BATCH]
        outputs = _Batch(model, prompts, [rows[i] for i in some], limits).run()
        for i, output in zip(some, outputs, strict=True):
            found[i] = output
    return found


def _grouped(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: float32 [rows, heads, tokens, width]."""
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _grouped)
AttentionMaskInterface.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


class _Batch:
    """Rows that take their steps together; those at an end leave it."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], rows: list[Row], limits: Limits
    ) -> None:
        self.model, self.limits, self.rows = model, limits, rows
        self.settings = rule.table([row.setting for row in rows])
        self.counts = np.array([len(row.known) for row in rows], dtype=np.int32)
        self.histories = np.zeros((len(rows), limits.tokens), dtype=np.int32)
        self.runs = np.zeros((len(rows), rule.MOST_WINDOW + 1), dtype=np.int32)
        self.looped = np.zeros((len(rows), limits.tokens), dtype=bool)
        self.state = rule.new_state(len(rows))
        for i, row in enumerate(rows):
            self.histories[i, : len(row.known)] = row.known
        rule.replay(self.histories, self.counts, self.runs, self.looped, self.settings, self.state)
        texts = [[*prompts[row.item], *row.known] for row in rows]
        width = max(map(len, texts))
        self.ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
        self.mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
        self.live = np.arange(len(rows))
        self.closed = np.zeros(len(rows), dtype=bool)

    def run(self) -> list[list[int]]:
        cache, ids = DynamicCache(config=self.model.config), self.ids
        positions = (self.mask.cumsum(1) - 1).clip(0)
        with torch.inference_mode():
            while len(self.live):
                logits = self.model(
                    input_ids=ids,
                    attention_mask=self.mask,
                    position_ids=positions,
                    past_key_values=cache,
                    logits_to_keep=1,
                ).logits[:, -1]
                tokens, going = self._take(logits.float().numpy())
                if going.sum() <= SHRINK * len(going):
                    kept = torch.from_numpy(going.nonzero()[0])
                    cache.batch_select_indices(kept)
                    self.mask, positions = self.mask[kept], positions[kept]
                    self.live, tokens = self.live[going], tokens[going]
                ids = torch.from_numpy(tokens)[:, None]
                self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
                positions = positions[:, -1:] + 1
        return [self.histories[i, : self.counts[i]].tolist() for i in range(len(self.rows))]

    def _take(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Append a token to every live row; return them, and which rows go on."""
        live = self.live
        runs, looped, state = self.runs[live], self.looped[live], self.state[live]
        logits = np.ascontiguousarray(logits)
        histories, counts = self.histories[live], self.counts[live]
        rule.lower_rows(logits, histories, counts, runs, looped, self.settings[live], state)
        self.runs[live], self.looped[live], self.state[live] = runs, looped, state
        if self.limits.temperature:
            logits = logits / self.limits.temperature
            for i, row in enumerate(live):
                place = [0, self.rows[row].item, int(self.counts[row])]
                noise = np.random.default_rng(place).standard_exponential(
                    logits.shape[1], dtype=np.float32
                )
                logits[i] -= np.log(np.maximum(noise, 1e-30))
        tokens = logits.argmax(axis=1)
        open_ = self.counts[live] < self.limits.tokens
        if self.limits.end is not None:
            self.closed[live[tokens == self.limits.end]] = True
            open_ &= ~self.closed[live]
        going = live[open_]
        self.histories[going, self.counts[going]] = tokens[open_]
        self.counts[going] += 1
        return tokens, open_ & (self.counts[live] < self.limits.tokens)
