"""Send requests of an attack, and say in a line how each was answered."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from bench.http_client import HTTP
from hostile.attacks import ABORT, LEAVE, STREAM, Attack, Request
from hostile.servers import Target

SHOWN = 400
"""Characters of a request or an answer that are kept."""
CONNECT_SECONDS = 10.0
ABORT_SECONDS = 20.0
NOT_SENT = "not sent"


def send(target: Target, request: Request, deadline: float) -> str:
    """Send a request; returns status, how it finished, and what was said, or how else it ended."""
    left = deadline - time.monotonic()
    if left <= 0 or not target.lives:
        return NOT_SENT
    body, content = request.body, request.content
    if request.how == STREAM:
        body = {**body, "stream": True}
    if request.how == ABORT:
        body = {**body, "rid": os.urandom(8).hex()}
    if body is not request.body:
        content = Request(body).content
    patience = max(request.after, 0.01) if request.how == LEAVE else left
    headers = {"Content-Type": "application/json"}
    with ThreadPoolExecutor(1) as pool:
        if request.how == ABORT:
            pool.submit(_abort, target.url, body["rid"], request.after)
        try:
            with HTTP.stream(
                "POST",
                target.url + request.path,
                content=content,
                headers=headers,
                timeout=httpx.Timeout(CONNECT_SECONDS, read=patience),
            ) as answer:
                text = b""
                ends = time.monotonic() + patience
                for part in answer.iter_bytes():
                    text = (text + part)[-(2**20) :]
                    if time.monotonic() > ends:
                        raise httpx.ReadTimeout("the answer goes on")
                return said(answer.status_code, text)
        except httpx.TimeoutException:
            return "left" if request.how == LEAVE else "no answer"
        except httpx.HTTPError as error:
            return f"cut off: {type(error).__name__}"


def _abort(url: str, rid: str, after: float) -> None:
    time.sleep(after)
    HTTP.post(f"{url}/abort_request", json={"rid": rid}, timeout=ABORT_SECONDS)


def said(status: int, text: bytes) -> str:
    """An answer in a line: its status, finish reasons, and the first line of an error."""
    content = text.split(b"data: ")[-1 if b"data: [DONE]" not in text else -2]
    try:
        answer = json.loads(content)
    except ValueError:
        return f"{status}: {text[:SHOWN].decode(errors='replace')}" if status != 200 else "200"
    error = answer.get("error") or answer.get("detail") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        code, error = error.get("code"), error.get("message", error)
        status = code if isinstance(code, int) else status
    if status != 200 or error:
        line, *_ = [*str(answer if error is None else error).splitlines(), ""]
        return f"{status}: {line[:SHOWN]}"
    reasons = {json.dumps(found) for found in _finishes(answer)}
    return f"200 {', '.join(sorted(reasons))}".strip()[:SHOWN]


def _finishes(answer: Any) -> Iterator[str]:
    if isinstance(answer, list):
        for one in answer:
            yield from _finishes(one)
    elif isinstance(answer, dict):
        meta = answer.get("meta_info") or answer
        reason = meta.get("finish_reason") if isinstance(meta, dict) else None
        if isinstance(reason, dict):
            reason = reason.get("message") or reason.get("type")
        if isinstance(reason, str):
            yield reason.splitlines()[0] if reason else ""
        yield from _finishes(answer.get("choices") or [])


def is_right(answer: str, attack: Attack) -> bool:
    """Whether a request may be answered so: an error has a status that is allowed, and a reason."""
    status, _, reason = answer.partition(":")
    if answer == "left" or (status[:3] == "200" and "Traceback" not in answer):
        return True
    allowed = status.isdigit() and int(status) in attack.statuses
    return allowed and bool(reason.strip()) and "Traceback" not in reason


def timed(target: Target, request: Request, deadline: float) -> tuple[str, float]:
    """Send a request; returns what `send` does, and the seconds until then."""
    began = time.monotonic()
    return send(target, request, deadline), time.monotonic() - began


def shown(request: Request) -> str:
    """The beginning of a request."""
    return f"{request.path} {request.content[:SHOWN].decode(errors='replace')}"
