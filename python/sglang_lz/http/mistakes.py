"""Decides whether an error is the client's fault (HTTP 400) or the server's (HTTP 500).

The rules:

- While a request is being **read** (its body checked, its prompt built and tokenized, all before it
  reaches a scheduler), the outcome depends on the request alone. An error of a kind that invalid
  data causes (`DATA_ERRORS`) is then the client's, whichever code raised it. Errors with other
  causes (out of memory, missing file, lost connection, cancelled task) are never the client's.
- After that, only a `ValueError` on a route that samples is the client's: by upstream's convention,
  that is how it rejects a request at any stage. Any other error is the server's.
- The routes in `READERS` only read: they compute on the body and never use a scheduler.

If we answer 400 to an error that upstream did not raise on purpose, we log its traceback, so that a
bug in the server's own code does not go unnoticed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jinja2
import msgspec
import pydantic

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

DATA_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    jinja2.TemplateError,
    msgspec.MsgspecError,
    re.error,
)

READERS = ("/parse_function_call", "/separate_reasoning", "/v1/messages/count_tokens")


class Unreadable(ValueError):
    """A request has values that upstream's code does not expect; the message is a sentence."""

    def __init__(self, error: BaseException) -> None:
        what = " ".join(str(error)[:300].split()) or "no more is known"
        super().__init__(
            f"The request holds a value that cannot be used here ({type(error).__name__}: {what})."
        )


def reading(function: F) -> F:
    """Wrap a function that reads a request: `DATA_ERRORS` become ValueErrors (upstream's hook).

    A ValueError is already meant for the client and passes unchanged.
    """
    if not inspect.iscoroutinefunction(function):
        return _reading()(function)

    @functools.wraps(function)
    async def read(*args: Any, **kwargs: Any) -> Any:
        with _reading():
            return await function(*args, **kwargs)

    return read  # type: ignore[return-value]


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except DATA_ERRORS as error:
        raise as_refusal(error) from error


def as_refusal(error: Exception) -> ValueError:
    """The ValueError to raise instead of one of the `DATA_ERRORS`."""
    if isinstance(error, ValueError) and str(error):
        return error
    logger.warning("A request could not be read", exc_info=error)
    return Unreadable(error)


def is_clients(error: Exception, *, samples: bool, path: str) -> bool:
    """Whether an error raised by a route is the client's fault.

    Args:
        error: the exception that the route raised.
        samples: whether the route samples.
        path: the path of the route.
    """
    if path in READERS:
        return isinstance(error, DATA_ERRORS)
    # Upstream's answers are pydantic models: failing to build one is not the client's fault.
    return samples and isinstance(error, ValueError) and not isinstance(
        error, pydantic.ValidationError
    )  # fmt: skip
