"""scripts/watch-upstream: what it runs, what it reports, and its exit status."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
watch: Any = importlib.import_module("_watch_upstream")
CLEAN = "clean          sampling/plan-step.patch\n0.5.23 to 9.9.9: 1 clean\n"
CONFLICT = "conflict       sampling/plan-step.patch  a.py\n"
AUDITED = "No known vulnerabilities found"
ALL = [
    *("asking", "how the patches", "cloning", "carrying", "building", "the contract"),
    "known vulnerabilities",
]
ANSWERS = {
    "versions": (0, "WARNING: experimental\nsglang (9.9.9)\nAvailable versions: 9.9.9, 0.5.23\n"),
    "bump": (0, CLEAN),
    "pip-audit": (0, AUDITED),
}


@pytest.mark.parametrize(
    "case",
    [
        ({}, 0, ALL),
        ({"versions": (0, f"sglang ({watch.release(watch.PATCHES)})\n")}, 0, [ALL[0], ALL[-1]]),
        ({"versions": (1, "ERROR: no index")}, 2, ALL[:1]),
        ({"bump": (1, CONFLICT)}, 1, [*ALL[:2], ALL[-1]]),
        ({"bump": (2, "sglang-lz: pip could not download it.")}, 2, [*ALL[:2], ALL[-1]]),
        ({"bump": (1, CLEAN + "argument x is new: judge it")}, 1, [*ALL[:4], ALL[-1]]),
        ({"test": (1, "1 failed")}, 1, ALL),
        ({"pip-audit": (1, "Found 2 known vulnerabilities in 1 package")}, 1, ALL),
        ({"pip-audit": (1, "ERROR: could not be audited")}, 2, ALL),
    ],
)
def test_a_night(
    case: tuple[dict[str, tuple[int, str]], int, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers, status, ran = case
    titles: list[str] = []

    def run(title: str, command: list[str], *_: Path, **environ: str) -> Any:
        titles.append(title)
        given = ANSWERS | answers
        word = next((word for word in given if word in " ".join(command)), "")
        return watch.Step(title, *given.get(word, (0, "")))

    monkeypatch.setattr(watch, "run", run)
    monkeypatch.setattr(watch, "do_steps", lambda _: None)
    report = tmp_path / "report.md"
    assert watch.watch(["--report", str(report)]) == status
    assert len(titles) == len(ran)
    assert all(title.startswith(start) for title, start in zip(titles, ran, strict=True))
    if len(ran) > 1:
        assert report.read_text() + "\n" == capsys.readouterr().out
        assert ("docker/cpu.lock and docker/torch.lock: good\n" in report.read_text()) == (
            "pip-audit" not in answers
        )


def test_the_end_of_a_long_output_is_shown() -> None:
    text = watch.Step("title", 0, "\n".join(map(str, range(500)))).markdown()
    assert "    (440 lines before)\n    440\n" in text
    assert text.endswith("    499\n")
