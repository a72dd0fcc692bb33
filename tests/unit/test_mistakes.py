"""Whose fault an error is."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import jinja2
import pydantic
import pytest

from sglang_lz.http.mistakes import is_clients, reading


def nested() -> None:
    nested()


READ: tuple[Callable[[], Any], ...] = (
    lambda: {}["content"],
    [].pop,
    lambda: len(None),  # type: ignore[arg-type]
    lambda: None.get,  # type: ignore[attr-defined]
    lambda: (2**70).to_bytes(8, "little"),
    lambda: 1 // 0,
    nested,
    lambda: re.compile("("),
    lambda: jinja2.Template("{{ 1 / 0 }}").render(),
    lambda: jinja2.Environment(undefined=jinja2.StrictUndefined).from_string("{{ a }}").render(),
    lambda: int("x"),
    lambda: json.loads("{"),
)


@pytest.mark.parametrize("read", READ)
def test_errors_from_wrong_data_while_reading_are_the_clients(read: Callable[[], Any]) -> None:
    async def later() -> Any:
        return read()

    with pytest.raises(ValueError, match=r"\w"):
        reading(read)()
    with pytest.raises(ValueError, match=r"\w"):
        asyncio.run(reading(later)())


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError("disk"), ConnectionError(), TimeoutError(), RuntimeError("device")],
    ids=repr,
)
def test_errors_with_other_causes_are_the_servers(error: Exception) -> None:
    def read() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        reading(read)()
    assert raised.value is error
    assert not is_clients(error, samples=True, path="/generate")
    assert not is_clients(error, samples=False, path="/separate_reasoning")


def test_cancellation_is_not_converted() -> None:
    async def read() -> None:
        raise asyncio.CancelledError

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await reading(read)()

    asyncio.run(run())


def test_an_error_in_building_the_answer_is_the_servers() -> None:
    class Answer(pydantic.BaseModel):
        text: str

    with pytest.raises(pydantic.ValidationError) as raised:
        Answer(text=5)  # type: ignore[arg-type]
    assert not is_clients(raised.value, samples=True, path="/api/chat")
