"""The plots of bench.repetition, of committed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.common import RESULTS
from bench.repetition import charts, repetition, view

SWEEP = RESULTS / "pocket-sweep" / "result.json"


@pytest.fixture
def result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SWEEP.read_text())
    return found


def drawn(directory: Path, result: dict[str, Any]) -> dict[str, bytes]:
    """What the command writes beside a committed result, which comes without its samples."""
    directory.mkdir()
    (directory / "result.json").write_text(json.dumps(result))
    repetition.main(["report", str(directory)])
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix == ".png"}


@pytest.mark.slow
def test_the_same_result_alone_gives_the_same_bytes(tmp_path: Path, result: dict[str, Any]) -> None:
    first, second = (drawn(tmp_path / name, result) for name in ("one", "two"))
    assert first == second
    assert first.keys() == {"overview.png", "sweeps.png"}


def test_each_task_has_its_plots(tmp_path: Path, result: dict[str, Any]) -> None:
    cells = [cell for cell in result["cells"] if cell["variant"] in ("none", "lz 0.15")]
    result["cells"] = cells + [{**cell, "task": "my task"} for cell in cells]
    assert drawn(tmp_path / "run", result).keys() == {
        "overview-pocket.png",
        "overview-my-task.png",
    }


def test_a_task_without_answers_has_no_accuracy(tmp_path: Path, result: dict[str, Any]) -> None:
    result["cells"] = [{**cell, "accuracy": None} for cell in result["cells"]]
    assert view.Task("pocket", result).measures == ["degenerate"]
    assert "overview.png" in drawn(tmp_path / "run", result)


def test_sweeps_are_by_strength_and_begin_without_a_penalty(result: dict[str, Any]) -> None:
    result["cells"].reverse()
    sweeps = {sweep.title: sweep for sweep in view.Task("pocket", result).sweeps()}
    sweep = sweeps["lz"]
    assert sweep.rows == ["none", "0.05", "0.1", "0.15", "0.2", "0.3"]
    assert sweep.columns == ["0", "0.7"]
    means = {(c["variant"], c["temperature"]): c["accuracy"]["mean"] for c in result["cells"]}
    names = ["none", *(f"lz {strength}" for strength in sweep.rows[1:])]
    assert sweep.values["accuracy"] == [[means[name, t] for t in (0.0, 0.7)] for name in names]


def test_colours_do_not_stretch_noise() -> None:
    def heat(*shares: float | None) -> view.HeatMap:
        return view.HeatMap("lz", ["0", "1"], ["0.1"], {"accuracy": [list(shares)]})

    assert charts.ends([heat(0.3, None), heat(0.9, 0.4)], "accuracy") == (0.3, 0.9)
    assert charts.ends([heat(0.50, 0.52)], "accuracy") == pytest.approx((0.32, 0.52))
    assert charts.ends([heat(0.0, 0.01)], "accuracy") == (0.0, 0.2)


def test_lines_are_of_one_strength_each(result: dict[str, Any]) -> None:
    """The one measured at the most temperatures, then with the most samples, then the best."""

    def lz() -> str:
        main = view.Task("pocket", result).main
        assert main[0] == "none"
        (found,) = (name for name in main if name.startswith("lz 0") and "onset" not in name)
        return found

    assert lz() == "lz 0.05"  # the most accurate there, over both temperatures
    for cell in result["cells"]:
        if cell["variant"] == "lz 0.3":
            cell["accuracy"]["mean"] += 0.3
    assert lz() == "lz 0.3"
    for cell in result["cells"]:
        if cell["variant"] == "lz 0.15":
            cell["samples"] += 1
    assert lz() == "lz 0.15"
    result["cells"] = [
        cell
        for cell in result["cells"]
        if (cell["variant"], cell["temperature"]) != ("lz 0.15", 0.7)
    ]
    assert lz() == "lz 0.3"


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, ""), (0.0, "0"), (0.004, "<1"), (0.12, "12"), (0.996, ">99"), (1.0, "100")],
)
def test_small_cells_never_round_to_all_or_nothing(share: float | None, text: str) -> None:
    assert view.short(share) == text
