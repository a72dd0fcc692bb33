"""scripts/watch-upstream: what it runs, what it reports, and its exit status."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
watch: Any = importlib.import_module("_watch_upstream")
INDEX = "WARNING: experimental\nsglang (9.9.9)\nAvailable versions: 9.9.9, 0.5.23\n"
CLEAN = "clean          sampling/plan-step.patch\n0.5.23 to 9.9.9: 1 clean\n"
CONFLICT = "conflict       sampling/plan-step.patch  a.py\n"
AUDITED = "No known vulnerabilities found"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replace what it runs: returns the titles of what was run, for given answers."""

    def replace(**answers: tuple[int, str]) -> list[str]:
        titles: list[str] = []

        def run(title: str, command: list[str], cwd: Path, **environ: str) -> Any:
            titles.append(title)
            word = next((word for word in answers if word in " ".join(command)), "")
            return watch.Step(title, *answers.get(word, (0, "")))

        monkeypatch.setattr(watch, "run", run)
        return titles

    return replace


def test_nothing_is_new(asked: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    newest = watch.release(watch.PATCHES)
    titles = asked(versions=(0, f"sglang ({newest})\n"), pip_audit=(0, AUDITED))
    assert watch.watch(["--report", str(tmp_path / "report.md")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# SGLang {newest}: the patches are for it\n")
    assert f"docker/cpu.lock and docker/torch.lock: good\n\n    {AUDITED}\n" in out
    assert (tmp_path / "report.md").read_text() + "\n" == out
    assert not [title for title in titles if "carr" in title]


def test_a_release_that_works_is_built_and_tested(
    asked: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    titles = asked(versions=(0, INDEX), bump=(0, CLEAN), pip_audit=(0, AUDITED))
    assert watch.watch([]) == 0
    assert "building it, and the quick tests" in titles
    assert "the contract on one server" in titles
    assert "## the contract on one server: good" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "status", "left_out"),
    [
        ({"bump": (1, CONFLICT)}, 1, "cloning"),
        ({"bump": (2, "sglang-lz: pip could not download it.")}, 2, "cloning"),
        ({"bump": (1, CLEAN + "argument x is new: judge it")}, 1, "building"),
        ({"test": (1, "1 failed")}, 1, "nothing"),
        ({"pip_audit": (1, "Found 2 known vulnerabilities in 1 package")}, 1, "nothing"),
        ({"pip_audit": (1, "ERROR: could not be audited")}, 2, "nothing"),
        ({"versions": (1, "ERROR: no index")}, 2, "known vulnerabilities"),
    ],
)
def test_what_a_person_must_look_at(
    asked: Any, answers: dict[str, tuple[int, str]], status: int, left_out: str
) -> None:
    answers = {"versions": (0, INDEX), "bump": (0, CLEAN), "pip_audit": (0, AUDITED)} | answers
    titles = asked(**answers)
    assert watch.watch([]) == status
    assert not [title for title in titles if left_out in title]


def test_the_end_of_a_long_output_is_shown() -> None:
    text = watch.Step("title", 0, "\n".join(map(str, range(500)))).markdown()
    assert "    (440 lines before)\n    440\n" in text
    assert text.endswith("    499\n")


def test_an_unknown_argument() -> None:
    with pytest.raises(watch.SetupError, match="'--fast' is not an argument"):
        watch.watch(["--fast"])
