"""How much the LZ penalty lowers each token of a text, and which earlier copy is the reason.

All numbers come from `lz_penalty.reference`. Windows advance token by token, as in a server, and
the savings of a whole chunk of positions are then computed at once. This makes the reference fast
enough for an output of 4,096 tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import fields

import numpy as np
import torch

from lz_penalty.detector import Loop
from lz_penalty.fields.lz import RECOMMENDED, LZParams
from lz_penalty.reference import steps
from lz_penalty.reference.codelength import saved_bits
from lz_penalty.reference.window_view import WindowView
from lz_penalty.window import LOOPED, MEMORY, RowWindow, WindowState
from sglang_lz.guard.metrics import reached

COLUMNS = ("nats", "distance", "match", "copies", "cover", "memory")
"""What `Explainer.explain` returns for each token:

nats: by how much its logit is lowered.
distance: how many tokens before it the copy is that it repeats; 0 if there is none.
match: how many tokens before it equal those before the copy, at most B.
copies: c_p of docs/SPEC.md section 9 at the copy.
cover: C_t of section 9, in tokens.
memory: for how many steps the memory is on, this one included; 0 if it is off.
"""
CHUNK = 128
"""Positions whose savings are computed at once; bounds the memory for wide windows."""

ROW = torch.tensor([0])
Row = list[float]


class Explainer:
    """One output that grows, with its window."""

    def __init__(
        self,
        params: LZParams,
        vocab_size: int,
        prompt: Sequence[int] = (),
        numbers: Iterable[int] = (),
    ) -> None:
        """Begin before the first token of an output.

        Args:
            params: the settings. The copies are found even if the strength is 0.
            vocab_size: V, the width of the logits.
            prompt: token ids; used only with `include_prompt`.
            numbers: those of N (docs/SPEC.md section 9), at least those of the prompt.
        """
        self._params, self._vocab_size = params, vocab_size
        visible = array("q", prompt if params.include_prompt else ())
        window = RowWindow(visible, sampled=len(visible), length=len(visible), lz=params)
        width = params.window_size
        self._state = state = WindowState(1, width, "cpu", vocab_size)
        self.add_numbers(numbers)
        steps.seed(state, {0: window})
        position = torch.tensor([len(visible) - 1])
        self._view = WindowView.of(state, ROW, position, width)

    def add_numbers(self, numbers: Iterable[int]) -> None:
        """Add tokens to N; the output must not contain them yet."""
        own = [token for token in numbers if 0 <= token < self._vocab_size]
        self._state.host_numbers[own] = 1

    def explain(self, tokens: Sequence[int], candidates: Sequence[int] | None = None) -> list[Row]:
        """Append tokens to the output.

        Args:
            tokens: token ids.
            candidates: the token to explain at each step; by default the token that was chosen.

        Returns:
            For each candidate a row of `COLUMNS`, with the state before its step.
        """
        candidates = tokens if candidates is None else candidates
        rows: list[Row] = []
        for begin in range(0, len(tokens), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            rows += self._explain_chunk(tokens[chunk], candidates[chunk])
        return rows

    def _explain_chunk(self, tokens: Sequence[int], candidates: Sequence[int]) -> list[Row]:
        before = []
        for token in tokens:
            before.append(self._view)
            self._view = self._view.advance(steps.marked(self._state, ROW, torch.tensor([token])))
        names = [one.name for one in fields(WindowView)]
        views = WindowView(*(torch.cat([getattr(v, name) for v in before]) for name in names))
        is_rate = torch.full((len(tokens),), self._params.cost == "rate")
        bits = saved_bits(views.match, views.length, self._vocab_size, is_rate)
        nats = (bits * (self._params.penalty * views.strength)).numpy()
        # The token of column k extends the match of column k + 1.
        match = np.pad(views.match.numpy()[:, 1:], ((0, 0), (0, 1)))
        copies, cover = views.copies.numpy(), views.cover.tolist()
        column = np.arange(nats.shape[1])
        same = views.ids.numpy() == np.array(candidates)[:, None]
        same &= column < views.length.numpy()[:, None]
        rows: list[Row] = []
        for i, own in enumerate(same):
            found = own.nonzero()[0]
            known = [(cover[i][LOOPED] & (2**64 - 1)).bit_count(), cover[i][MEMORY]]
            if not len(found):
                rows.append([0.0, 0, 0, 0, *known])
                continue
            # The copy that lowers it the most; among equals the one with the longest match, and
            # among those the nearest.
            most = max(found, key=lambda k: (nats[i, k], match[i, k], -k))
            taken = float(nats[i, most]) if 0 <= candidates[i] < self._vocab_size else 0.0
            rows.append([taken, int(most) + 1, int(match[i, most]), int(copies[i, most]), *known])
        return rows


def loops_in(tokens: Sequence[int], params: LZParams, numbers: Iterable[int] = ()) -> list[Loop]:
    """The loops in an output that reach the onset of these settings, or the recommended onset if
    they have none.

    Args:
        tokens: token ids.
        params: the settings.
        numbers: those of N, at least those of the output.
    """
    own = [*numbers]
    is_number = np.zeros(max(own, default=0) + 1, dtype=np.uint8)
    is_number[own] = 1
    onset = params.onset or RECOMMENDED["lz_onset"]
    return list(reached(array("q", tokens), params.window_size, onset, is_number))
