"""The servers that are attacked: those started here, and one that is there already."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from bench.constraints.vocabularies import ADDED, vocabulary
from hostile.attacks import LARGE, VOCABULARY
from server.launch import Config
from soak.drive import Log, Served

FLAGS = ("--max-total-tokens", "200000", "--max-running-requests", "128")


@dataclass
class Target:
    """A server that is attacked: where it is, its first process, and what starts it if we do."""

    url: str
    pid: int
    served: Served | None = None

    @property
    def lives(self) -> bool:
        """Whether its process is there."""
        if self.served is not None:
            return self.served.server.process.poll() is None
        return psutil.pid_exists(self.pid)

    def kill(self) -> None:
        """End it, if it is ours."""
        if self.served is not None:
            os.killpg(self.pid, signal.SIGKILL)

    def restart(self) -> None:
        """Start it again, if it is ours.

        Raises:
            ProcessError: it was not ready in time.
            SystemExit: it is not ours.
        """
        if self.served is None:
            raise SystemExit("The server was harmed: start it again for the attacks that are left.")
        self.served.start_again(None)
        self.url, self.pid = self.served.url, self.served.server.process.pid


def model(folder: Path) -> Path:
    """Write the large tokenizer and the config of a small model with dummy weights."""
    text = vocabulary("qwen2", VOCABULARY[LARGE], Path(".cache/vocabularies"))
    path = folder / "model"
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(text)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCABULARY[LARGE] + len(ADDED),
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        **sizes,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


@contextmanager
def serving(name: str, url: str | None, folder: Path) -> Iterator[Target]:
    """The server of a name, started here, or the one at a URL of this machine."""
    if url is not None:
        port = urlsplit(url).port
        listeners = [
            one.pid
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
        ]
        if not listeners:
            raise SystemExit(f"No process of this machine listens at {url}.")
        yield Target(url, listeners[0])
        return
    model_flags: tuple[str, ...] = ()
    if name == LARGE:
        model_flags = ("--model-path", str(model(folder)), "--load-format", "dummy")
    with Served(
        Config(f"hostile-{name}", (*FLAGS, *model_flags)), folder / "logs", Log()
    ) as served:
        yield Target(served.url, served.server.process.pid, served)
