"""A client of the one server that the playground talks to."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

SECONDS = 120.0
"""How long the server may send nothing, in seconds."""
STOCK = (
    "This server is not sglang-lz, so it cannot run the LZ penalty; the other two columns work. "
    "Start one with scripts/serve."
)


class UpstreamError(Exception):
    """The server did not do what was requested; the message is a sentence for the page."""


@dataclass(frozen=True)
class About:
    """Facts about the server that the page needs.

    Attributes:
        model: the model's served name.
        is_ours: whether it has the LZ penalty.
        max_window_size: the largest W, in tokens; 0 if it is not ours.
        vocab_size: V; 0 if it is not ours.
        max_input: how many tokens a prompt may have; None if the server does not say.
        heeds_seed: whether a request's seed matters.
    """

    model: str
    is_ours: bool
    max_window_size: int
    vocab_size: int
    max_input: int | None
    heeds_seed: bool


class Upstream:
    """A client of the server; close it at the end."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Make a client that has not connected yet.

        Args:
            url: where the server is, http or https.
            transport: how to reach it, for tests.

        Raises:
            ValueError: the URL is not one of a server.
        """
        parts = httpx.URL(url)
        if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
            raise ValueError(f"--server must be a URL as http://127.0.0.1:30000, got {url[:80]!r}.")
        self.url = url.rstrip("/")
        # No proxy, redirect or password of the environment: it talks to this server only.
        self._client = httpx.AsyncClient(
            base_url=self.url, transport=transport, trust_env=False, timeout=SECONDS
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def about(self) -> About:
        """Ask the server, which may have been replaced, for facts about it.

        Raises:
            UpstreamError: it does not answer, or is not an SGLang server.
        """
        info = await self._json("GET", "/server_info")
        if not isinstance(info, dict) or "served_model_name" not in info:
            raise UpstreamError(f"What answers at {self.url} is no server of SGLang.")
        window = info.get("lz_max_window_size", 0)
        longest = info.get("max_req_input_len")  # a prompt must be shorter
        return About(
            model=str(info["served_model_name"]),
            is_ours=bool(window),
            max_window_size=window,
            vocab_size=await self._vocab_size() if window else 0,
            max_input=longest and longest - 1,
            heeds_seed=bool(info.get("enable_deterministic_inference")),
        )

    async def _vocab_size(self) -> int:
        """V. No endpoint has it, but the refusal of a token id that is too large names it."""
        too_large = {"input_ids": [2**31 - 1], "sampling_params": {"max_new_tokens": 1}}
        response = await self._request("POST", "/generate", too_large)
        found = re.search(r"token ids in \[0, (\d+)\]", response.text)
        if not found:
            raise UpstreamError("The server does not say how many tokens its model has.")
        return int(found[1]) + 1

    async def tokenize(self, text: str, *, is_chat: bool) -> list[int]:
        """The token ids of a text, or of a chat that begins with it as the user's message.

        Raises:
            UpstreamError: the server refuses it.
        """
        chat = {"messages": [{"role": "user", "content": text}]}
        answer = await self._json("POST", "/tokenize", chat if is_chat else {"prompt": text})
        return [int(token) for token in answer["tokens"]]

    async def texts(self, tokens: Sequence[int]) -> list[str]:
        """The texts of single tokens.

        Raises:
            UpstreamError: the server refuses it.
        """
        body = {"tokens": [[token] for token in tokens], "skip_special_tokens": False}
        return list((await self._json("POST", "/detokenize", body))["text"])

    async def stream(
        self, prompt: Sequence[int], sampling_params: Mapping[str, Any], interval: int
    ) -> AsyncGenerator[dict[str, Any]]:
        """Generate; yields each answer of the stream, which holds the whole output so far.

        Args:
            prompt: token ids.
            sampling_params: as `/generate` takes them.
            interval: how many tokens there are between answers.

        Raises:
            UpstreamError: the server refuses the request, or the stream breaks.
        """
        body = {
            "input_ids": list(prompt),
            "sampling_params": {**sampling_params, "stream_interval": interval},
            "stream": True,
            "return_logprob": True,
            "return_text_in_logprobs": True,
        }
        try:
            async with self._client.stream("POST", "/generate", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise UpstreamError(_refusal(response))
                rest = b""
                async for part in response.aiter_bytes():
                    # Not by lines: some characters within a text would end those, too.
                    *found, rest = (rest + part).split(b"\n\n")
                    for event in found:
                        data = event.removeprefix(b"data: ")
                        if data == b"[DONE]":
                            return
                        answer = json.loads(data)
                        if "error" in answer:
                            raise UpstreamError(_sentence(answer))
                        yield answer
        except httpx.HTTPError as error:
            raise UpstreamError(self._unreachable(error)) from None
        except ValueError:
            raise UpstreamError("The server's stream is not one of /generate.") from None
        raise UpstreamError("The server's stream broke off before its end.")

    async def unpenalised(
        self, prompt: Sequence[int], output: Sequence[int], most: int | None
    ) -> list[tuple[float, float, int, str]]:
        """Score each token of an output by the model without any penalty, in one prefill.

        Args:
            prompt, output: token ids.
            most: how many tokens a prompt of this server may have; None if it does not say.

        Returns:
            For each token, as far as `most` reaches: its log probability at
            temperature 1; and the log probability, the id and the text of the most likely token
            there.

        Raises:
            UpstreamError: the server refuses it.
        """
        input_ids = [*prompt, *output][:most]
        body = {
            "input_ids": input_ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "top_logprobs_num": 1,
            "return_text_in_logprobs": True,
        }
        meta = (await self._json("POST", "/generate", body))["meta_info"]
        own, top = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
        if not len(own) == len(top) == len(input_ids) - len(prompt):
            raise UpstreamError("The server gave no log probabilities of the whole output.")
        return [
            (one[0], best[0][0], best[0][1], best[0][2] or "")
            for one, best in zip(own, top, strict=True)
        ]

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        response = await self._request(method, path, body)
        if response.status_code != httpx.codes.OK:
            raise UpstreamError(_refusal(response))
        try:
            return response.json()
        except ValueError:
            raise UpstreamError(f"What answers at {self.url} is no server of SGLang.") from None

    async def _request(self, method: str, path: str, body: Any) -> httpx.Response:
        try:
            return await self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise UpstreamError(self._unreachable(error)) from None

    def _unreachable(self, error: httpx.HTTPError) -> str:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return f"No server answers at {self.url}."
        if isinstance(error, httpx.TimeoutException):
            return f"The server at {self.url} said nothing for {SECONDS:g} s."
        return f"The connection to {self.url} broke off."


def pieces(text: str, begin: int, tokens: Sequence[str]) -> tuple[list[str], int]:
    """Divide a text among its tokens.

    The texts of single tokens do not simply add up to the text: some tokenizers leave out a space
    in front, and a character may consist of several tokens. Each token gets its part of `text`, and
    what is between two parts goes to the first of them. Special tokens, which the text leaves out,
    keep their own.

    Args:
        text: the text of the output so far.
        begin: where the first of these tokens begins in it.
        tokens: their texts, decoded one by one.

    Returns:
        Their parts of the text, and where the next token begins.
    """
    found: list[str] = []
    passed = 1  # tokens since the last that was found in the text
    for token in tokens:
        clean = token.strip("\ufffd")
        at = text.find(clean, begin, begin + passed + len(clean)) if clean else -1
        passed += 1
        if at < 0:
            found.append(token if clean else "")
            continue
        passed = 1
        before = text[begin:at]
        if before.strip() and found:  # the rest of a character that began before
            found[-1] += before
            before = ""
        begin = at + len(clean)
        found.append(before + clean)
    return found, begin


def _refusal(response: httpx.Response) -> str:
    try:
        return _sentence(response.json())
    except ValueError:
        return f"The server answered with HTTP {response.status_code}."


def _sentence(answer: Any) -> str:
    """The message in an error of any of SGLang's APIs."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return f"The server says: {str(message)[:400]}"
