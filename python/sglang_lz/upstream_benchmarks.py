"""The LZ penalty in `sglang.benchmark.one_batch`: each public name is used by patches/bench/.

That tool runs requests without a server, so `penalize` admits them as a server would.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lz_penalty.fields.lz import LARGEST_MAX_WINDOW_SIZE, LZParams
from sglang_lz.http.admission import admit, given_fields, other_fields


@dataclass(kw_only=True)
class LZBenchArgs:
    """What upstream's `BenchArgs` inherits from us.

    Attributes:
        lz_variants: JSON objects of sampling parameters, the innermost loop of the benchmark's
            sweep. They may be repeated, so that they alternate in one process.

    Raises:
        ValueError: a wrong value; the message names the field, the value and the range.
    """

    lz_variants: tuple[str, ...] = ("{}",)

    def __post_init__(self) -> None:
        for fields in self.lz_sweep():
            LZParams.parse(given_fields(fields), LARGEST_MAX_WINDOW_SIZE)

    def lz_sweep(self) -> list[dict[str, Any]]:
        """The sampling parameters of each variant, in order."""
        return [json.loads(variant) for variant in self.lz_variants]

    def lz_strongest(self) -> dict[str, Any]:
        """Those with the largest strength. A warm-up with them compiles all kernels."""
        return max(self.lz_sweep(), key=lambda fields: fields.get("lz_penalty", 0.0))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `LZBenchArgs`."""
    parser.add_argument(
        "--lz-variants",
        nargs="+",
        default=LZBenchArgs.lz_variants,
        metavar="JSON",
        help="sampling parameters of each run, such as '{\"lz_penalty\": 0.15}'",
    )


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
