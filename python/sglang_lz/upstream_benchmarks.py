"""The LZ penalty in upstream's benchmark tools: each public name is what patches/bench/ calls.

`sglang.benchmark.one_batch` runs requests without a server, so what a server does when it admits
them is done here. `sglang.benchmark.serving` sends them to one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sglang_lz.params import FIELDS, LARGEST_MAX_WINDOW_SIZE, LZParams

BACKENDS = ("sglang", "sglang-native", "sglang-oai", "sglang-oai-chat")


def add_arguments(parser: argparse.ArgumentParser, **penalty: Any) -> None:
    """Add the five `--lz-*` arguments; `penalty` says more to argparse about `--lz-penalty`."""
    group = parser.add_argument_group("LZ penalty")
    group.add_argument("--lz-penalty", type=float, help="Strength, in nats per bit.", **penalty)
    group.add_argument("--lz-window-size", type=int, help="In tokens.")
    group.add_argument("--lz-buffer-size", type=int, help="In tokens.")
    group.add_argument("--lz-include-prompt", action="store_true", default=None)
    group.add_argument("--lz-cost", help="marginal or rate.")


@dataclass(kw_only=True)
class LZBenchArgs:
    """The penalties of one_batch; upstream's `BenchArgs` inherits from it.

    Attributes:
        lz_penalty: strengths in nats per bit, the innermost loop of the sweep. Values may return,
            so that penalties alternate in one process.
        others: as in `LZParams`, for every strength; None takes the default.

    Raises:
        ValueError: a wrong value; the message names the field, the value and the range.
    """

    lz_penalty: tuple[float, ...] = (0.0,)
    lz_window_size: int | None = None
    lz_buffer_size: int | None = None
    lz_include_prompt: bool | None = None
    lz_cost: str | None = None

    def __post_init__(self) -> None:
        for fields in self.lz_sweep():
            LZParams.parse(fields, LARGEST_MAX_WINDOW_SIZE)

    def lz_sweep(self) -> list[dict[str, Any]]:
        """The request fields of each strength, in order."""
        return [_given(vars(self) | {"lz_penalty": strength}) for strength in self.lz_penalty]

    def lz_strongest(self) -> dict[str, Any]:
        """The request fields of the largest strength: a warm-up with it leaves nothing cold."""
        return max(self.lz_sweep(), key=lambda fields: fields["lz_penalty"])


def penalize(reqs: Iterable[Any], fields: dict[str, Any]) -> None:
    """Give upstream's requests the penalty of some request fields, as a server would admit it.

    Raises:
        ValueError: the fields are wrong for the server arguments in effect, such as a window above
            --lz-max-window-size.
    """
    from sglang_lz.requests import admit

    for req in reqs:
        admit(req.sampling_params, fields, is_encoder_decoder=False, has_input_embeds=False)


def request_fields(args: Any) -> dict[str, Any]:
    """The request fields that serving's arguments ask for; empty if they ask for none.

    Raises:
        ValueError: a wrong value, or a backend that does not know the fields.
    """
    fields = _given(vars(args))
    if fields and (args.backend not in BACKENDS or getattr(args, "rust_client", False)):
        raise ValueError(
            f"--lz-* arguments need one of the backends {', '.join(BACKENDS)}, without "
            f"--rust-client; got {args.backend}."
        )
    LZParams.parse(fields, LARGEST_MAX_WINDOW_SIZE)
    return fields


def into_sampling_params(payload: dict[str, Any]) -> dict[str, Any]:
    """A body of /generate whose LZ fields stand where that endpoint takes them.

    serving merges what is extra in a request at the top level, for every endpoint.
    """
    fields = _given(payload)
    body = {name: value for name, value in payload.items() if name not in FIELDS}
    return {**body, "sampling_params": {**body["sampling_params"], **fields}}


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in FIELDS if values.get(name) is not None}
