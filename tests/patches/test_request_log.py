"""`sglang-lz loops` reads the logs that upstream's request logger writes."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from sglang_lz.guard.past_outputs import LoopsError, Output, read

# A client may write what looks like the end of a request.
FORGED = """it's ', out={'text': 'fine', 'output_ids': [1], "so" """
SHORT: dict[str, Any] = {"text": 'it\'s "so"\n' * 9, "output_ids": [5, 6, 7] * 9}
LONG: dict[str, Any] = {"text": "a b " * 900, "output_ids": [8, 9] * 1800}


def logged(folder: Path, out: dict[str, Any], level: int, form: str = "json") -> list[Output]:
    """The outputs in the log of a request that came, and ended so."""
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.utils.request_logger import RequestLogger

    logger = RequestLogger(True, level, form, [str(folder)])
    request = GenerateReqInput(rid="7", text=FORGED, sampling_params={"stop": [FORGED]})
    logger.log_received_request(request)
    logger.log_finished_request(request, {**out, "meta_info": {"id": "7", "e2e_latency": 0.5}})
    health = GenerateReqInput(rid="HEALTH_CHECK_1", input_ids=[0])
    logger.log_finished_request(health, {**SHORT, "meta_info": {"id": "HEALTH_CHECK_1"}})
    (file,) = folder.iterdir()
    return list(read(str(file)))


@pytest.mark.parametrize("out", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("keys", [("text", "output_ids"), ("output_ids",), ("text",)])
def test_outputs_in_the_log(tmp_path: Path, out: dict[str, Any], keys: tuple[str, ...]) -> None:
    kept = {key: out[key] for key in keys}
    tokens = array("q", out["output_ids"]) if "output_ids" in keys else None
    (whole,) = logged(tmp_path / "3", kept, 3)
    assert (whole.text, whole.tokens, whole.has_gap) == (kept.get("text"), tokens, False)
    if out is SHORT:
        (cut,) = logged(tmp_path / "2", kept, 2)
        assert (cut.text, cut.tokens, cut.has_gap) == (whole.text, tokens, False)
    elif "text" in keys:
        (cut,) = logged(tmp_path / "2", kept, 2)
        text = out["text"]
        assert (cut.text, cut.tokens) == (f"{text[:1024]}...{text[-1024:]}", None)
        assert cut.has_gap
    else:
        with pytest.raises(LoopsError, match="take --log-requests-level 3"):
            logged(tmp_path / "2", kept, 2)


@pytest.mark.parametrize("level", [0, 1])
def test_a_log_without_outputs(tmp_path: Path, level: int) -> None:
    with pytest.raises(LoopsError, match="take --log-requests-level 3"):
        logged(tmp_path, SHORT, level)


def test_a_log_that_is_not_in_json(tmp_path: Path) -> None:
    with pytest.raises(LoopsError, match="take --log-requests-format json"):
        logged(tmp_path, SHORT, 3, "text")
