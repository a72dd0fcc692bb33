"""A finished run of bench.repetition without a model: numbers of a formula, not of a sample."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

HOSTILE = "</pre><script>document.title = 'owned'</script><img src=http://127.0.0.1:9/x> & \"q\""

VARIANTS: tuple[tuple[str, str, float | None, float, float], ...] = (
    # name, family, strength, points of accuracy, factor of the degenerate share
    ("none", "", None, 0.0, 1.0),
    ("lz 0.15", "lz", 0.15, 0.04, 0.05),
    ("lz rate 0.15", "lz rate", 0.15, 0.02, 0.3),
    ("repetition 1.2", "repetition", 1.2, -0.08, 0.4),
    ("frequency 0.5", "frequency", 0.5, -0.2, 0.02),
)
TEMPERATURES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)


def scores(mean: float, half: float, std: float | None = 0.01) -> Row:
    mean = min(max(mean, 0.0), 1.0)
    return {"mean": mean, "std": std, "ci": [max(mean - half, 0.0), min(mean + half, 1.0)]}


def cell(
    task: str,
    variant: tuple[str, str, float | None, float, float],
    temperature: float,
    *,
    graded: bool = True,
    judged: bool = False,
    parts: Sequence[str] = ("sort", "add"),
    levels: Sequence[str] = ("2", "4", "10"),
) -> Row:
    name, family, strength, points, factor = variant
    accuracy = 0.55 + points - 0.12 * (temperature - 0.4) ** 2
    degenerate = 0.4 * factor * (1 - temperature) ** 2
    samples = 200 if temperature == 0 else 600

    def part(off: float) -> Row:
        return {
            "items": 20,
            "accuracy": scores(accuracy - off, 0.1) if graded else None,
            "degenerate": scores(degenerate * (1 + off), 0.05),
        }

    looped = round(samples * degenerate)
    difference = {
        "accuracy": {"mean": points, "ci": [points - 0.03, points + 0.03]} if graded else None,
        "degenerate": {"mean": 0.4 * (factor - 1), "ci": [0.4 * (factor - 1) - 0.02, -0.01]},
    }
    return {
        "task": task,
        "variant": name,
        "family": family,
        "strength": strength,
        "temperature": temperature,
        "items": 200,
        "samples": samples,
        "accuracy": scores(accuracy, 0.045, None if temperature == 0 else 0.012)
        if graded
        else None,
        "degenerate": scores(degenerate, 0.03, None if temperature == 0 else 0.008),
        "loops": {"most_copies": 1 + looped, "period": 3, "cut_off": looped, "longest_period": 7},
        "judge": scores(degenerate + 0.03, 0.03) if judged else None,
        "agreement": {
            "both": looped,
            "detector_only": 0,
            "judge_only": 18,
            "neither": samples - looped - 18,
        }
        if judged
        else None,
        "tokens": {"mean": 211.4 + 300 * degenerate, "std": 4.0, "ci": [190.0, 340.0]},
        "rep_4_gram": {"mean": 0.1 + degenerate, "std": 0.01, "ci": [0.08, 0.6]},
        "compression_ratio": {"mean": 0.41 - degenerate / 2, "std": 0.01, "ci": [0.2, 0.5]},
        "finish": {"stop": samples - looped, "length": looped},
        "against_none": None if name == "none" else difference,
        "groups": {name: part(0.1 * i) for i, name in enumerate(parts)},
        "levels": {name: part(0.15 * i) for i, name in enumerate(levels)},
    }


def worst(task: str) -> Row:
    unit = " so 7 + 5 = 12,"
    before = f"First I add the ones:{HOSTILE}\n" + 2 * unit + " then"
    return {
        "item": f"{task}/add-17",
        "variant": "none",
        "temperature": 0.0,
        "seed": 0,
        "prompt": f"Add 27 and 35 <b>step by step</b>. {HOSTILE}",
        "repeats": 90,
        "period": 7,
        "start": 31,
        "unit_text": unit,
        "text": before + 40 * unit + unit[:5],
        "text_begin": 12,
        "correct": False,
        "counterpart": {
            "variant": "lz 0.15",
            "text": f"27 + 35 = 62. {HOSTILE}",
            "text_length": 4000,
            "repeats": 1,
            "correct": True,
        },
    }


def write_run(
    directory: Path,
    tasks: Sequence[str] = ("pocket",),
    variants: Sequence[tuple[str, str, float | None, float, float]] = VARIANTS,
    temperatures: Sequence[float] = TEMPERATURES,
    **of_cells: Any,
) -> Row:
    """Write DIRECTORY/result.json as a run would, and return it."""
    run = {
        "endpoint_model": "pocket",
        "date": "2026-01-31 12:00 UTC",
        "cpu": "Some CPU @ 2.00GHz",
        "cores": 2,
        "commit": "0123456789abcdef0123-changed",
        "temperatures": list(temperatures),
        "seeds": 3,
        "max_tokens": 512,
        "unit": "tokens",
    }
    command = "python -m bench.repetition run --task pocket --penalty none --penalty lz --out run"
    result = {
        "measures": "accuracy, and the share of outputs with a unit 20 times in a row",
        "command": command,
        "run": run | {"command": command},
        "cells": [
            cell(task, variant, temperature, **of_cells)
            for task in tasks
            for variant in variants
            for temperature in temperatures
        ],
        "worst": [worst(task) for task in tasks],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_text(json.dumps(result))
    return result
