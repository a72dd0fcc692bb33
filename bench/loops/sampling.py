"""Sampling: the run directory, the endpoint, and the samples between them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from common import ROOT
from loops.grid import Grid, Key, Variant
from loops.tasks import Item

RUN, ITEMS, SAMPLES = "run.json", "items.jsonl", "samples.jsonl"

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
ATTEMPTS = 6
"""How often a request is sent that fails with a 5xx or without an answer."""
FIRST_PAUSE_SECONDS = 0.5
"""Before the second attempt; twice as long before each further one."""

# Values that a server which knows the field must refuse.
OUT_OF_RANGE: dict[str, object] = {
    "lz_penalty": -1,
    "lz_window_size": 0,
    "lz_buffer_size": 0,
    "lz_include_prompt": "neither",
    "lz_cost": "no such cost",
    "repetition_penalty": -1,
    "frequency_penalty": 99,
    "presence_penalty": 99,
}
NO_VALUE: dict[str, object] = {"no": "value"}  # for a field that we do not know
PROBE_TOKENS = 24
PROBE_PROMPTS = 4

STARTUP_SECONDS = 1800.0
SHUTDOWN_SECONDS = 30.0
LOG_LINES = 30
# So small that threads only wait on each other.
SMALL_MODELS = {
    "demo": ROOT / "python" / "sglang_lz" / "demo" / "model",
    "pocket": ROOT / "python" / "sglang_lz" / "demo" / "reasoner",
}

OWN_FIELDS = {
    *("model", "messages", "prompt", "n", "stream"),
    *("max_tokens", "temperature", "seed", "return_token_ids"),
}
"""Fields of a request that are the run's own to set."""


class RunError(Exception):
    """Why a run cannot begin or go on, in a sentence for its user."""


# The run directory


class Lines:
    """A file of JSON lines that one process appends to, each line whole or not at all."""

    def __init__(self, path: Path) -> None:
        """Open the file, made if it is missing, and cut off a last line that a kill left behind.

        Raises:
            RunError: another process has it open, or a line is no JSON object.
        """
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RunError(f"another process is writing {path}.") from None
        self._file.seek(0)
        written = self._file.read()
        self._file.truncate(written.rfind(b"\n") + 1)
        self.before = parse_lines(written, path)

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line; from here on it outlives a kill of this process."""
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; others may then write it."""
        self._file.close()


@dataclass
class Record:
    """The open run directory; nobody else writes to it meanwhile.

    Attributes:
        directory: where it is.
        done: what is sampled.
        samples: samples.jsonl.
    """

    directory: Path
    done: set[Key]
    samples: Lines

    def add(self, key: Key, sample: Mapping[str, Any]) -> None:
        """Append one sample."""
        self.samples.add({**key._asdict(), **sample})
        self.done.add(key)


@contextlib.contextmanager
def record(
    directory: Path,
    items: Sequence[Item],
    grid: Grid,
    settings: dict[str, Any],
    facts: dict[str, Any],
) -> Iterator[Record]:
    """Open a run directory, begun by this call or before.

    Args:
        directory: made if it is missing.
        items: all items of the run.
        grid: what each is sampled under.
        settings: everything that two samples must share to be compared.
        facts: whatever else is worth knowing; kept from the run's first call.

    Raises:
        RunError: another process writes there, or what is there was made with other settings.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Lines(directory / SAMPLES)) as samples:
        if (directory / RUN).exists():
            _compare(directory, json.loads(json.dumps(settings)))  # lists for tuples
        else:
            lines = [json.dumps(dataclasses.asdict(item), ensure_ascii=False) for item in items]
            write(directory / ITEMS, "".join(line + "\n" for line in lines))
            write(directory / RUN, json.dumps({**facts, **settings}, indent=1) + "\n")
        wanted, done = set(grid.keys(items)), set[Key]()
        for number, sample in enumerate(samples.before, 1):
            key = key_of(sample)
            if key not in wanted or key in done:
                problem = "is there twice" if key in done else "is no part of this run"
                raise RunError(f"{directory / SAMPLES}, line {number}: {tuple(key)} {problem}.")
            done.add(key)
        yield Record(directory, done, samples)


def _compare(directory: Path, settings: dict[str, Any]) -> None:
    before = json.loads((directory / RUN).read_text())
    for name, value in settings.items():
        if before.get(name) != value:
            raise RunError(
                f"{directory} was begun with other settings: {name} was "
                f"{_shown(before.get(name))} and is {_shown(value)}. Give another --out, or "
                "remove that directory to begin anew."
            )


def parse_lines(written: bytes, path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, without a last line that is cut short.

    Args:
        written: what the file holds.
        path: its name, for errors.

    Raises:
        RunError: a whole line is no JSON object.
    """
    found = []
    for number, line in enumerate(written.split(b"\n")[:-1], 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise RunError(f"{path}, line {number} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise RunError(f"{path}, line {number} is no JSON object.")
        found.append(value)
    return found


def key_of(sample: Mapping[str, Any]) -> Key:
    """Which sample of the grid a line of samples.jsonl is."""
    return Key(*(sample[name] for name in Key._fields))


def items_digest(items: Sequence[Item]) -> str:
    """The sha256 of everything in these items."""
    text = json.dumps([dataclasses.asdict(item) for item in items])
    return hashlib.sha256(text.encode()).hexdigest()


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:197] + "..."


# The endpoint


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible endpoint and what every request to it has.

    Attributes:
        base_url: its address, without "/v1".
        model: the model's name there.
        kind: "chat" or "completions".
        max_tokens: the most tokens of an answer.
        fields: further fields of every request.
        token_ids: whether it tells the token ids of an answer; without them the detector works on
            characters.
        headers: HTTP headers of every request.
    """

    base_url: str
    model: str
    kind: str
    max_tokens: int
    fields: dict[str, object]
    token_ids: bool = True
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    def body(
        self, prompt: str, temperature: float, seed: int, penalty: Mapping[str, object]
    ) -> dict[str, object]:
        """The request that asks for one answer."""
        asked: dict[str, object] = (
            {"messages": [{"role": "user", "content": prompt}]}
            if self.kind == "chat"
            else {"prompt": prompt}
        )
        return {
            "model": self.model,
            **asked,
            "max_tokens": self.max_tokens,
            "temperature": temperature,
            "seed": seed,
            **({"return_token_ids": True} if self.token_ids else {}),
            **self.fields,
            **penalty,
        }

    async def post(self, client: httpx.AsyncClient, body: Mapping[str, object]) -> httpx.Response:
        """Send a request, again after a pause if it fails for no fault of its own.

        Raises:
            RunError: it failed `ATTEMPTS` times.
        """
        url = self.base_url + PATHS[self.kind]
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                answer = await client.post(url, json=body, headers=self.headers)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code < 500 and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return answer
            problem = f"HTTP {answer.status_code}: {_message(answer)}"
        raise RunError(f"{url} failed {ATTEMPTS} times, the last time with {problem}")

    async def answer(self, client: httpx.AsyncClient, body: Mapping[str, object]) -> dict[str, Any]:
        """What a sample says of an answer: text, token_ids, completion_tokens, finish_reason.

        Raises:
            RunError: the endpoint refused the request, or answered something else.
        """
        found = await self.post(client, body)
        if found.status_code != httpx.codes.OK:
            raise RunError(
                f"{self.base_url} refused a request with HTTP {found.status_code}: "
                f"{_message(found)}"
            )
        try:
            answer = found.json()
            (choice,) = answer["choices"]
            if self.kind == "chat":
                text = choice["message"]["content"] or ""
                # A server that splits off the chain of thought: there are the loops.
                if thought := choice["message"].get("reasoning_content"):
                    text = f"{thought}</think>{text}"
            else:
                text = choice["text"]
            # SGLang's name in chat completions, then its name in completions and vLLM's.
            ids = choice.get("response_token_ids") or choice.get("token_ids")
            return {
                "text": text,
                "token_ids": ids,
                "completion_tokens": answer["usage"]["completion_tokens"],
                "finish_reason": choice["finish_reason"],
            }
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.base_url} answered something else than OpenAI's API does "
                f"({type(error).__name__}: {error}): {found.text[:500]}"
            ) from None


def discover(base_url: str, headers: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """The names of an endpoint's models, and what SGLang's /server_info says, {} elsewhere.

    Raises:
        RunError: nothing answers there.
    """
    try:
        with httpx.Client(timeout=60.0, headers=dict(headers)) as client:
            models = client.get(f"{base_url}/v1/models")
            models.raise_for_status()
            names = [model["id"] for model in models.json()["data"]]
            info = client.get(f"{base_url}/server_info")
            return names, info.json() if info.status_code == httpx.codes.OK else {}
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{base_url}/v1/models does not answer: {error}") from None


async def probe(
    endpoint: Endpoint, items: Sequence[Item], variants: Sequence[Variant]
) -> tuple[Endpoint, bool | None]:
    """Find out what an endpoint really does with the fields of a run.

    Returns:
        the endpoint, with `token_ids` as it is there, and whether it honours seeds: None if no
        seed changes anything, for a model that is sure of itself.

    Raises:
        RunError: it accepts a value that no server which knows the field would, so it ignores it.
    """
    async with httpx.AsyncClient(timeout=600.0) as client:
        short = dataclasses.replace(endpoint, max_tokens=min(PROBE_TOKENS, endpoint.max_tokens))
        first = await short.post(client, short.body(items[0].prompt, 0.0, 0, {}))
        known = first.status_code == httpx.codes.OK
        if (
            not known
            or (await short.answer(client, short.body(items[0].prompt, 0.0, 0, {})))["token_ids"]
            is None
        ):
            endpoint = dataclasses.replace(endpoint, token_ids=False)
            short = dataclasses.replace(short, token_ids=False)
            await short.answer(client, short.body(items[0].prompt, 0.0, 0, {}))
        for name in dict.fromkeys(name for variant in variants for name in variant.fields):
            value = OUT_OF_RANGE.get(name, NO_VALUE)
            answer = await short.post(client, short.body(items[0].prompt, 0.0, 0, {name: value}))
            if answer.status_code == httpx.codes.OK:
                raise RunError(
                    f"{endpoint.base_url} ignores {name}: it answered a request with {name}="
                    f"{json.dumps(value)} as if nothing were wrong. What it samples would show "
                    f"nothing of {name}; a router in front of the server may drop the field."
                )
        repeats, differs = True, False
        for item in items[:PROBE_PROMPTS]:
            texts = [
                (await short.answer(client, short.body(item.prompt, 1.0, seed, {})))["text"]
                for seed in (1, 1, 2, 3)
            ]
            repeats &= texts[0] == texts[1]
            differs |= len(set(texts[1:])) > 1
        return endpoint, repeats if differs or not repeats else None


def _message(answer: httpx.Response) -> str:
    """What an endpoint says of an error, in one line."""
    try:
        found = answer.json()
        found = found.get("error", found)
        return str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, LookupError, AttributeError):
        return " ".join(answer.text.split())[:500] or answer.reason_phrase


# Sampling


def request_seed(key: Key) -> int:
    """The seed that a request sends, 31 bits.

    The same under every variant, so that they differ by the penalty alone, and another for each
    item: servers draw the noise of a position from the seed only.
    """
    digest = hashlib.sha256(f"{key.seed} {key.item}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def sample(
    endpoint: Endpoint,
    items: Sequence[Item],
    grid: Grid,
    kept: Record,
    *,
    concurrency: int,
    timeout: float,
) -> None:
    """Sample what is missing of a run.

    Args:
        endpoint: where.
        items: all items of the run.
        grid: what each is sampled under.
        kept: the run's directory.
        concurrency: requests at a time.
        timeout: seconds that one request may take.

    Raises:
        RunError: the endpoint refuses a request, or fails again and again.
        KeyboardInterrupt: the user ended it by SIGINT or SIGTERM.
    """
    try:
        asyncio.run(_sample(endpoint, items, grid, kept, concurrency=concurrency, timeout=timeout))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _sample(
    endpoint: Endpoint,
    items: Sequence[Item],
    grid: Grid,
    kept: Record,
    *,
    concurrency: int,
    timeout: float,
) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    prompts = {item.id: item.prompt for item in items}
    penalties = {variant.name: variant.fields for variant in grid.variants}
    keys = list(grid.keys(items))
    missing = [key for key in keys if key not in kept.done]
    finished: Counter[str] = Counter()

    async def work(keys: Iterator[Key]) -> None:
        for key in keys:
            body = endpoint.body(
                prompts[key.item], key.temperature, request_seed(key), penalties[key.variant]
            )
            began = time.monotonic()
            answer = await endpoint.answer(client, body)
            seconds = round(time.monotonic() - began, 3)
            kept.add(key, {**answer, "seconds": seconds})
            finished[str(answer["finish_reason"])] += 1
            bar.set_postfix(finished, refresh=False)
            bar.update()

    limits = httpx.Limits(max_connections=concurrency)
    with tqdm(total=len(keys), initial=len(kept.done), unit="sample", dynamic_ncols=True) as bar:
        async with httpx.AsyncClient(timeout=timeout, limits=limits) as client:
            # Not beside each other: where one request is greedy, SGLang (seen in 0.5.23) draws the
            # others' tokens by their rank instead of their id, which gives a seed other tokens.
            for greedy in (True, False):
                phase = iter([key for key in missing if (key.temperature == 0) is greedy])
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(concurrency):
                            group.create_task(work(phase))
                except* RunError as failures:
                    raise failures.exceptions[0] from None


# A server of one's own


@contextlib.contextmanager
def serving(model: str, arguments: Sequence[str], log: Path) -> Iterator[str]:
    """The address of a server that scripts/serve starts and that ends with the block.

    Seeds count there: it runs with --enable-deterministic-inference.

    Args:
        model: a name of `SMALL_MODELS`, or what sglang takes as --model-path.
        arguments: further arguments of scripts/serve.
        log: where its output goes.

    Raises:
        RunError: it ended, or did not start in time; the message ends with its output.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        *(str(ROOT / "scripts" / "serve"), "--host", "127.0.0.1", "--port", str(port)),
        *("--model-path", str(SMALL_MODELS.get(model, model))),
        *("--served-model-name", model, "--enable-deterministic-inference"),
        *arguments,
    ]
    env = dict(os.environ)
    if model in SMALL_MODELS:
        env.setdefault("OMP_NUM_THREADS", "1")
        env.setdefault("HF_HUB_OFFLINE", "1")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509, we have one thread
        )
    try:
        deadline = time.monotonic() + STARTUP_SECONDS
        while not _answers(f"{url}/health_generate"):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
                raise RunError(f"no server of {model}; the end of {log}:\n{tail}")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SHUTDOWN_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_with_parent() -> None:
    """In the child: ask the kernel for a SIGTERM when our parent dies, however it dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG, prctl(2)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=10.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
