"""Compare the penalised logits of the static benchmark's own steps with tests/oracle.py.

Run by scripts/gpu-check. Two requests with one prompt share a batch, one with the penalty, and both
are fed what the penalised one sampled: so at every step the other's logits are those of the same
prefix without the penalty.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sglang.benchmark import one_batch

import _gpu_one_batch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from oracle import delta_bits, visible_history  # noqa: E402

MODEL = ROOT / "python" / "sglang_lz" / "demo" / "model"
PROMPT = list(range(300, 340)) * 2
STEPS = 96
STRENGTH, WINDOW, BUFFER = 0.5, 48, 8
NATS = 2e-4  # docs/SPEC.md section 7
CASES = [(cost, prompt) for cost in ("marginal", "rate") for prompt in (False, True)]


def deviation(runner: Any, cost: str, include_prompt: bool) -> tuple[float, float]:
    """Run `STEPS` greedy steps; return the largest deviation from the oracle and what is allowed.

    Returns:
        Both in nats. Allowed is docs/SPEC.md's bound plus the rounding of the logits' own dtype.

    Raises:
        SystemExit: the penalty changed no logit, so that nothing was compared.
    """
    import numpy as np
    import torch

    reqs = _requests(cost, include_prompt)
    runner.clear()
    tokens, logits, batch = runner.extend(reqs)
    outputs: list[int] = []
    worst, largest, changed = 0.0, 0.0, False
    for _ in range(STEPS):
        penalised, base = logits.double().cpu().numpy()
        history = visible_history(PROMPT, outputs, include_prompt)
        delta = np.array(delta_bits(history, len(base), WINDOW, BUFFER, cost))
        # A constant for the whole vocabulary changes no probability.
        difference = (penalised - base) - STRENGTH * (delta - np.log2(len(base)))
        worst = max(worst, float(np.abs(difference - np.median(difference)).max()))
        largest = max(largest, float(np.abs(penalised).max()), float(np.abs(base).max()))
        changed |= bool((penalised != base).any())
        token = int(tokens[0])
        if penalised[token] != penalised.max():
            raise SystemExit(f"{token} was sampled, which is not the largest penalised logit")
        outputs.append(token)
        tokens, logits = runner.decode(torch.full_like(tokens, token), batch)
    if not changed:
        raise SystemExit(f"{cost}: the penalty changed no logit")
    return worst, NATS + 2 * torch.finfo(logits.dtype).eps * largest


def _requests(cost: str, include_prompt: bool) -> list[Any]:
    from sglang.srt.sampling.sampling_params import SamplingParams

    from sglang_lz.admission import admit

    fields = {
        "lz_penalty": STRENGTH,
        "lz_window_size": WINDOW,
        "lz_buffer_size": BUFFER,
        "lz_include_prompt": include_prompt,
        "lz_cost": cost,
    }
    reqs: list[Any] = one_batch.prepare_synthetic_inputs_for_latency_test(
        2, len(PROMPT), [PROMPT, PROMPT]
    )
    reqs[0].sampling_params = SamplingParams(temperature=0, max_new_tokens=STEPS)
    for req, requested in zip(reqs, (fields, {}), strict=True):
        params = req.sampling_params
        admit(params, requested, is_encoder_decoder=False, has_input_embeds=False)
    return reqs


def check(runner: Any) -> None:
    """Compare all cases.

    Raises:
        SystemExit: one deviates too far.
    """
    failed = False
    for cost, include_prompt in CASES:
        worst, allowed = deviation(runner, cost, include_prompt)
        failed |= worst > allowed
        words = "with prompt" if include_prompt else "output only"
        print(f"{cost}, {words}: {STEPS} steps, {worst:.2g} nats of {allowed:.2g} from the oracle")
    if failed:
        raise SystemExit("the penalised logits differ from the oracle's")


if __name__ == "__main__":
    _gpu_one_batch.run(["--model-path", str(MODEL), *sys.argv[1:]], 2, check)
