"""Requests that decode beside a chunk of a prompt leave its rest the room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sglang_lz.mixed_chunks import decodes_fit

OFFSET = 50  # what the step's own chunk counts for


@pytest.mark.parametrize(
    ("free", "decodes", "rest", "expected"),
    [
        (30, 5, 25, True),
        (30, 6, 25, False),
        (5, 5, None, True),
        (4, 5, None, False),
        (30, 0, 25, False),  # nobody decodes
    ],
)
def test_the_rest_of_a_prompt_keeps_its_room(
    free: int, decodes: int, rest: int | None, expected: bool
) -> None:
    budget = SimpleNamespace(remaining_current=free - OFFSET, current_offset=OFFSET)
    batch = SimpleNamespace(
        is_empty=lambda: decodes == 0,
        check_decode_mem=lambda: decodes <= free,
        new_tokens_required_next_decode=lambda: decodes,
    )
    chunked = None
    if rest is not None:
        chunked = SimpleNamespace(full_untruncated_fill_ids=[0] * 200, extend_end=200 - rest)
    fit = decodes_fit(cast("Any", batch), cast("Any", budget), cast("Any", chunked))
    assert fit is expected
