"""Start and end the real server, as `sglang-lz serve` of pytest's own environment does."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bench.http_client import answers
from bench.processes import Background, free_port, tail_of
from server.fork_server import of_environment

STARTUP_SECONDS = 600
SHUTDOWN_SECONDS = 0
"""A server that is told to end waits for its watchdog, which looks every five seconds."""
STARTS = 3
PORT_TAKEN = " in use"
FORKED = ("LZ_TEST_FORK", "1")
"""In the environment of servers that start as forks, and whose processes do."""
DRAFTS = Path(__file__).resolve().parents[2] / "bench" / "demo" / "drafts.py"
"""Of the checkout: wheels of the CUDA flavour have none."""

_BASE_FLAGS = (
    *("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"),
    *("--served-model-name", "m"),
    "--enable-metrics",  # answers then tell when each request came and went
    "--sleep-on-idle",  # the servers beside it, and the oracle, have use for the core
)
_DEFAULT_FLAGS = {"--max-total-tokens": "8192", "--max-running-requests": "48"}
_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Config:
    """One server configuration; tests that share it share a server."""

    name: str  # how tests and the summary call it
    # Server arguments beside those every server gets; a later value wins
    flags: tuple[str, ...] = ()
    # Environment variables beside those every server gets
    env: tuple[tuple[str, str], ...] = field(default=())
    stock: bool = False  # serve the package without our patches, found in LZ_STOCK_SITE
    # With them, serve as a pair of a prefill and a decode server (`Pair`), these being the decode
    # Server's own
    decode_flags: tuple[str, ...] | None = None
    draft: str | None = None  # the kind of draft model to speculate with (`bench.demo.drafts`)
    trained: bool = True  # whether that model is trained; its weights are random otherwise
    as_qwen3: bool = False  # serve `qwen3_path`


def model_path() -> Path:
    """The model to serve: LZ_TEST_MODEL, or the demo model of the installed package.

    Raises:
        RuntimeError: neither is there.
    """
    override = os.environ.get("LZ_TEST_MODEL")
    if override:
        return Path(override)
    spec = importlib.util.find_spec("sglang_lz")
    if spec is None or spec.origin is None:
        raise RuntimeError("sglang_lz is not installed; set LZ_TEST_MODEL to serve another model")
    return Path(spec.origin).parent / "demo" / "model"


@cache
def vocab_size() -> int:
    """Width of the model's logits row, from its config.json."""
    size = json.loads((model_path() / "config.json").read_text())["vocab_size"]
    assert isinstance(size, int)
    return size


def environment(config: Config) -> dict[str, str]:
    """The environment of a server of this configuration.

    Raises:
        RuntimeError: the configuration wants the stock package and LZ_STOCK_SITE names no folder.
    """
    env = {**_ENVIRONMENT, **os.environ, **dict(config.env)}
    env.pop("PYTEST_CURRENT_TEST", None)  # with it, no two servers could be forks of one process
    if config.stock:
        site = os.environ.get("LZ_STOCK_SITE", "")
        if not (Path(site) / "sglang").is_dir():
            raise RuntimeError(
                f"LZ_STOCK_SITE={site!r} holds no sglang; scripts/test builds one there"
            )
        env["PYTHONPATH"] = site
    return env


@cache
def qwen3_path() -> Path:
    """The model's weights as a Qwen3, made once; gone when this process ends.

    Upstream's Qwen2 knows no data-parallel attention. A server flag can change the architecture,
    too, but changes that of a draft model with it.
    """
    path = Path(_made_folder().name) / "qwen3"
    path.mkdir()
    for file in model_path().iterdir():
        (path / file.name).symlink_to(file)
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    config |= {"attention_bias": True}
    config |= {"head_dim": config["hidden_size"] // config["num_attention_heads"]}
    (path / "config.json").unlink()
    (path / "config.json").write_text(json.dumps(config))
    return path


@cache
def draft_path(kind: str, *, trained: bool) -> Path:
    """A draft model for the demo model.

    It is made once, in the folder that LZ_TEST_DRAFTS names; without one it is gone when this
    process ends.

    Raises:
        RuntimeError: it could not be made; the message is what its maker wrote.
    """
    folder = os.environ.get("LZ_TEST_DRAFTS") or _made_folder().name
    path = Path(folder, _made_from(), kind if trained else f"untrained-{kind}")
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        unfinished = Path(temporary, "draft")
        command = [sys.executable, "-P", str(DRAFTS), str(unfinished), "--kind", kind]
        if not trained:
            command.append("--untrained")
        made = subprocess.run(
            command, env={**_ENVIRONMENT, **os.environ}, capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise RuntimeError(f"no draft of kind {kind}\n{made.stdout}{made.stderr}")
        try:
            unfinished.rename(path)
        except OSError:
            if not path.exists():  # otherwise another process has made the same
                raise
    return path


@cache
def _made_from() -> str:
    """A digest of what draft models are made from."""
    digest = hashlib.sha256()
    for file in (DRAFTS, model_path() / "config.json", model_path() / "model.safetensors"):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    for package in ("torch", "transformers"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:16]


@cache
def _made_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="models-")


class Server:
    """A running server: its address, its process group and its log."""

    def __init__(self, config: Config, log_path: Path) -> None:
        self.config = config
        self.log_path = log_path
        self.notes = log_path.with_suffix(".notes")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = dict(_DEFAULT_FLAGS)
        # The stock package has no command of its own.
        module = ("sglang.launch_server",) if config.stock else ("sglang_lz", "serve")
        command = [sys.executable, "-m", *module, *_BASE_FLAGS]
        command += ["--model-path", str(self.model), "--port", str(port)]
        command += [
            part for name in flags if name not in config.flags for part in (name, flags[name])
        ]
        command += config.flags
        if config.draft is not None:
            draft = draft_path(config.draft, trained=config.trained)
            command += ["--speculative-draft-model-path", str(draft)]
        env = environment(config)
        is_forked = FORKED in config.env
        self.process = Background(
            command,
            name=f"server {config.name!r}",
            log=log_path,
            env=env | self._for_site(),
            grace=SHUTDOWN_SECONDS,
            launch=of_environment(env).launch if is_forked else subprocess.Popen,
        )

    @property
    def model(self) -> Path:
        """The folder of its model, unless the flags name another."""
        return qwen3_path() if self.config.as_qwen3 else model_path()

    def _for_site(self) -> dict[str, str]:
        """What a sitecustomize.py asks for, where a configuration has one run."""
        self.notes.mkdir()
        return {"LZ_TEST_NOTES": str(self.notes), "LZ_TEST_TOP_LOGPROBS": str(vocab_size())}

    def wait_until_ready(self) -> None:
        """Block until the server is ready.

        Raises:
            RuntimeError: it ended, or was not ready in time; the message ends with its log.
        """
        self.process.wait_until(self._is_ready, STARTUP_SECONDS)

    def _is_ready(self) -> bool:
        return answers(f"{self.url}/health_generate")

    def log(self) -> str:
        """All that the server wrote so far."""
        return self.log_path.read_text(errors="replace")

    def log_tail(self) -> str:
        """The last lines of the log, under a title."""
        return tail_of(self.log_path)

    def stop(self) -> None:
        """End the server and every process of its group."""
        self.process.stop()


def started(make: Callable[[int], Server]) -> Server:
    """A ready server of those that are made, mostly the first.

    Args:
        make: starts one, given a number. Upstream may have given its port to another process.
    """
    for i in range(STARTS):
        server = make(i)
        try:
            server.wait_until_ready()
        except BaseException:
            server.stop()
            if i == STARTS - 1 or PORT_TAKEN not in server.log():
                raise
        else:
            return server
    raise AssertionError


@contextlib.contextmanager
def serving(config: Config, log_path: Path) -> Iterator[Server]:
    """A ready server of this configuration; ended when the block is left, however it is left."""
    from server.disaggregated import Pair

    kind = Server if config.decode_flags is None else Pair
    server = started(
        lambda i: kind(config, log_path.with_stem(f"{log_path.stem}-{i}") if i else log_path)
    )
    try:
        yield server
    finally:
        server.stop()
