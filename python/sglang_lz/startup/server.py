"""Checks before a server serves: its LZ settings and the integrity of its files."""

from __future__ import annotations

import json
import logging
from typing import Any

from lz_penalty.fields.histories import LARGEST_HISTORY_MEMORY
from lz_penalty.fields.kinds import is_integer, number
from lz_penalty.fields.lz import LARGEST_MAX_WINDOW_SIZE, MAX_WINDOW_SIZE
from lz_penalty.fields.table import bad_value, shown
from sglang_lz.guard.guard import REPORTED
from sglang_lz.http.admission import Facts, other_fields, resolve
from sglang_lz.scheduler import hooks
from sglang_lz.startup.seal import verify_imported

logger = logging.getLogger(__name__)


def check_integer(name: str, value: Any, largest: int, unit: str) -> None:
    """Refuse a server argument that is no integer from 1 to `largest`, with a ValueError."""
    if not is_integer(value) or not 1 <= value <= largest:
        raise bad_value(name, value, f"an integer in [1, {largest}] ({unit})")


def check_server(config: Any) -> None:
    """Refuse to start a server that could not honour the LZ penalty (upstream's hook).

    Args:
        config: upstream's server arguments, as attributes.

    Raises:
        ValueError: one sentence that names the setting and its range, or the damaged files.
    """
    import sglang
    from sglang.srt.entrypoints.api_contract import generate_contract_error
    from sglang.srt.environ import envs

    max_window_size = config.lz_max_window_size
    check_integer(MAX_WINDOW_SIZE, max_window_size, LARGEST_MAX_WINDOW_SIZE, "tokens")
    check_integer("--lz-history-memory", config.lz_history_memory, LARGEST_HISTORY_MEMORY, "MiB")
    if (reported := config.lz_loop_finish_reason) not in REPORTED:
        raise bad_value("--lz-loop-finish-reason", reported, f"one of {', '.join(REPORTED)}")
    if not number(0, 1).takes(share := config.lz_observe_loops, None):
        raise bad_value("--lz-observe-loops", share, "a number in [0, 1] (share of outputs)")
    if share > 0 and not config.enable_metrics:
        raise bad_value("--lz-observe-loops", share, "0 without --enable-metrics")
    preferred = config.preferred_sampling_params or {}
    if isinstance(preferred, str):
        preferred = json.loads(preferred)

    def argument(name: str) -> Any:
        return None if name == "preferred_sampling_params" else getattr(config, name)

    try:
        # As if a request had them, so that no request is refused for what it did not send.
        resolve(preferred, Facts(), argument)
        problem = generate_contract_error({"sampling_params": other_fields(preferred)})
        several = [name for name in ("n", "beam_width") if preferred.get(name) not in (None, 1)]
        if several:  # upstream counts outputs before it looks at these parameters
            problem = f"{several[0]} must be left out, got {shown(preferred[several[0]])}"
        if problem:
            raise ValueError(f"{problem}.")
    except ValueError as error:
        raise ValueError(f"--preferred-sampling-params: {error}") from None
    whitespace = config.constrained_json_max_whitespace_cnt
    if whitespace is not None and whitespace < 1:
        raise ValueError(
            f"--constrained-json-max-whitespace-cnt must be at least 1, got {whitespace}: for JSON "
            "on one line use --constrained-json-disable-any-whitespace."
        )
    if config.enable_multi_layer_eagle and config.device == "cpu":
        raise ValueError(
            "--enable-multi-layer-eagle must be off on a CPU, which has no kernel for it."
        )
    if config.smg_grpc_mode:
        raise ValueError(
            "--smg-grpc-mode must be off: that protocol has no field for lz_penalty, so a router "
            "would drop it silently. Route over HTTP."
        )
    if envs.SGLANG_RUST_SERVER.get():
        raise ValueError(
            "SGLANG_RUST_SERVER must be unset: that compiled server does not know lz_penalty and "
            "could ignore it silently."
        )
    if problems := verify_imported(sglang):
        raise ValueError(
            f"this sglang-lz is damaged ({'; '.join(problems)}): reinstall its wheel, or run "
            "`sglang-lz doctor` for the whole list."
        )
    hooks.check()
    logger.info("LZ penalty ready: lz_max_window_size=%d", max_window_size)
