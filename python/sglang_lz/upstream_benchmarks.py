"""The LZ penalty in upstream's benchmark tools: each public name is used by patches/bench/.

`sglang.benchmark.one_batch` runs requests without a server, so `penalize` admits them as a server
would. `sglang.benchmark.serving` sends requests to a server.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import make_dataclass
from typing import Any

from lz_penalty.fields.lz import FIELDS, LARGEST_MAX_WINDOW_SIZE, LZParams
from lz_penalty.fields.table import argument
from sglang_lz.http.admission import admit, given_fields, other_fields

BACKENDS = ("sglang", "sglang-native", "sglang-oai", "sglang-oai-chat")


def add_arguments(parser: argparse.ArgumentParser, **penalty: Any) -> None:
    """Add an argument for each request field, such as `--lz-window-size` for `lz_window_size`.

    Args:
        parser: receives the arguments as a group.
        penalty: further arguments of `add_argument` for `--lz-penalty`. With `nargs`, it is swept,
            and `--lz-variants` sweeps any sampling parameters of a request.
    """
    group = parser.add_argument_group("LZ penalty")
    for name in FIELDS:
        more = penalty if name == "lz_penalty" else {}
        group.add_argument(f"--{name.replace('_', '-')}", **argument(name) | more)
    if "nargs" in penalty:
        group.add_argument(
            "--lz-variants",
            nargs="+",
            default=(),
            metavar="JSON",
            help="sampling parameters of each run, instead of the other arguments of this group",
        )


class _Sweep:
    """The methods of `LZBenchArgs`."""

    lz_penalty: tuple[float, ...]
    lz_variants: tuple[str, ...]

    def __post_init__(self) -> None:
        for fields in self.lz_sweep():
            LZParams.parse(given_fields(fields), LARGEST_MAX_WINDOW_SIZE)

    def lz_sweep(self) -> list[dict[str, Any]]:
        """The sampling parameters of each variant, or of each strength, in order."""
        if self.lz_variants:
            return [json.loads(variant) for variant in self.lz_variants]
        return [given_fields(vars(self) | {"lz_penalty": value}) for value in self.lz_penalty]

    def lz_strongest(self) -> dict[str, Any]:
        """The request fields of the largest strength. A warm-up with them compiles all kernels."""
        return max(self.lz_sweep(), key=lambda fields: fields.get("lz_penalty", 0.0))


LZBenchArgs = make_dataclass(
    "LZBenchArgs",
    [
        ("lz_penalty", tuple, (0.0,)),
        ("lz_variants", tuple, ()),
        *((name, object, None) for name in FIELDS if name != "lz_penalty"),
    ],
    bases=(_Sweep,),
    kw_only=True,
)
"""The LZ arguments of one_batch; upstream's `BenchArgs` inherits from it.

`lz_penalty` holds strengths in nats per bit, which form the innermost loop of the benchmark's
sweep. They may be repeated, so that they alternate in one process. The other fields apply to every
strength; None means the default. `lz_variants` holds JSON objects of any sampling parameters
instead.

Raises:
    ValueError: a wrong value; the message names the field, the value and the range.
"""


def penalize(reqs: Iterable[Any], fields: dict[str, Any], output_len: int) -> None:
    """Give upstream's requests sampling parameters, as a server would admit them.

    Args:
        reqs: the requests, whose `max_new_tokens` is not set, whatever upstream writes there.
        fields: the sampling parameters.
        output_len: how many tokens each request gets.

    Raises:
        ValueError: the fields are wrong for the server arguments in effect, such as a window above
            --lz-max-window-size.
    """
    for req in reqs:
        req.sampling_params.max_new_tokens = output_len
        for name, value in other_fields(fields).items():
            setattr(req.sampling_params, name, value)
        admit(req.sampling_params, fields, is_encoder_decoder=False, has_input_embeds=False)


def request_fields(args: Any) -> dict[str, Any]:
    """The request fields specified by serving's arguments; empty if there are none.

    Raises:
        ValueError: a value is wrong, or the backend does not support the fields.
    """
    fields = given_fields(vars(args))
    if fields and (args.backend not in BACKENDS or getattr(args, "rust_client", False)):
        raise ValueError(
            f"--lz-* arguments need one of the backends {', '.join(BACKENDS)}, without "
            f"--rust-client; got {args.backend}."
        )
    LZParams.parse(fields, LARGEST_MAX_WINDOW_SIZE)
    return fields


def into_sampling_params(payload: dict[str, Any]) -> dict[str, Any]:
    """The body of a /generate request, with its LZ fields moved to `sampling_params`.

    serving puts a request's extra fields at the top level on every endpoint.
    """
    params = {**payload["sampling_params"], **given_fields(payload)}
    return {**other_fields(payload), "sampling_params": params}
