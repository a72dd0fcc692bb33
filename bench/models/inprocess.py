"""Sampling in this process, for a machine on which a server would take days."""

from __future__ import annotations

import json
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import AutoTokenizer

from bench.models.decoder import Decoder
from bench.models.engine import Engine, Request
from bench.models.grid import Grid, Item, Key, request_seed
from bench.models.run_directory import SAMPLES, Record, key_of
from bench.records import read_lines
from lz_penalty.detector import Detector
from lz_penalty.fields.histories import COUNTS
from lz_penalty.fields.histories import FIELDS as HISTORY_FIELDS
from lz_penalty.fields.lz import FIELDS as LZ_FIELDS
from lz_penalty.fields.repetition import FIELD as DETECTION
from lz_penalty.fields.repetition import RepetitionDetection
from sglang_lz.models import catalogue

WINDOW = 512
"""The largest window size, if no penalty names a larger one."""
NONE = "none"
KNOWN = {*LZ_FIELDS, *HISTORY_FIELDS, *COUNTS, DETECTION}
"""The fields of penalties that a request here may have."""


def folder_of(model: str) -> Path:
    """The folder of a model: itself, or that of a name of `sglang-lz models`."""
    if Path(model, "config.json").is_file():
        return Path(model)
    if (found := catalogue.published().get(model)) is None:
        names = ", ".join(catalogue.published())
        raise ValueError(f"--in-process must be a folder or one of {names}, got {model!r}.")
    return catalogue.obtain(found)


class InProcess:
    """The model of a folder, and what is needed to sample a grid with it."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        """Read the tokenizer and the tokens that end an output."""
        self.folder, self.max_tokens = folder, max_tokens
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        config = json.loads((folder / "generation_config.json").read_text())
        ends = config["eos_token_id"]
        self.ends: list[int] = ends if isinstance(ends, list) else [ends]

    def sample(self, items: Sequence[Item], grid: Grid, kept: Record, *, slots: int) -> None:
        """Sample what is missing of a run.

        An output under the LZ penalty is the one without a penalty up to where that first acts, so
        only the rest is sampled.

        Args:
            items: all items of the run.
            grid: what each is sampled under.
            kept: the run's directory.
            slots: how many outputs are sampled at once.
        """
        torch.set_grad_enabled(False)
        prompts = {item.id: self._encode(item.prompt) for item in items}
        fields: dict[str, Mapping[str, Any]] = {v.name: v.fields for v in grid.variants}
        longest = max(map(len, prompts.values())) + self.max_tokens
        windows = (own.get("lz_window_size", WINDOW) for own in fields.values())
        decoder = Decoder(self.folder, slots, longest)
        engine = Engine(
            decoder,
            self.tokenizer,
            self.ends,
            max_tokens=self.max_tokens,
            window=max([WINDOW, *windows]),
        )
        plain = {
            key: line
            for line in read_lines(kept.directory / SAMPLES)
            if (key := key_of(line)).variant == NONE
        }
        keys = [key for key in grid.keys(items) if key not in kept.done]
        waiting = deque(keys)
        began: dict[Key, float] = {}

        def keep(key: Key, output: list[int], finish: str) -> None:
            if DETECTION in fields[key.variant]:
                detection = fields[key.variant][DETECTION]
                output, finish = _stopped(detection, output, finish, engine.numbers)
            sample = {
                "text": self.tokenizer.decode(output, skip_special_tokens=True),
                "token_ids": output,
                "completion_tokens": len(output),
                "finish_reason": finish,
                "seconds": round(time.monotonic() - began[key], 3),
            }
            kept.add(key, sample)
            if key.variant == NONE:
                plain[key] = sample
            bar.update()

        def requests() -> Iterator[Request]:
            later: list[Key] = []
            while waiting:
                key = waiting.popleft()
                own = {k: v for k, v in fields[key.variant].items() if k != DETECTION}
                base = None
                if _may_begin_alike(own) and key.variant != NONE and NONE in fields:
                    base = plain.get(key._replace(variant=NONE))
                    if base is None:
                        later.append(key)
                        continue
                began[key] = time.monotonic()
                request = Request(key, prompts[key.item], own, key.temperature, request_seed(key))
                if base is not None:
                    ids = base["token_ids"]
                    unchanged = engine.first_change(request, ids) if own else len(ids)
                    if unchanged == len(ids):
                        keep(key, ids, base["finish_reason"])
                        continue
                    request.output = ids[:unchanged]
                yield request
                waiting.extendleft(reversed(later))
                later = []
            waiting.extend(later)

        with tqdm(total=len(kept.done) + len(keys), initial=len(kept.done), unit="sample") as bar:
            while waiting:
                for request, finish in engine.run(requests()):
                    keep(request.key, request.output, finish)

    def _encode(self, prompt: str) -> list[int]:
        message = [{"role": "user", "content": prompt}]
        found: list[int] = self.tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_dict=False
        )
        return found


def _may_begin_alike(fields: Mapping[str, Any]) -> bool:
    """Whether these penalties may leave the beginning of an output as it is without any."""
    return all(name.startswith("lz_") for name in fields)


def _stopped(
    field: object, ids: list[int], finish: str, numbers: NDArray[np.uint8]
) -> tuple[list[int], str]:
    """An output up to where the loop guard ends it, and why it ends."""
    detection = RepetitionDetection.parse(field)
    assert detection is not None
    loop = Detector(detection).find(array("q", ids), numbers)
    return (ids, finish) if loop is None else (ids[: loop.end], "repetition")
