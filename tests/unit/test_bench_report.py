"""The report of bench.repetition, of numbers that a formula gives (bench_run)."""

from __future__ import annotations

import copy
import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bench.repetition import charts, repetition, report, view
from bench_run import HOSTILE, VARIANTS, write_run

LZ_SWEEP = tuple((f"lz {a}", "lz", a, a / 10, 0.1) for a in (0.05, 0.3))
MINUS, DASH, SPACE = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{NO-BREAK SPACE}"


class Parsed(HTMLParser):
    """Tags, and the text of each element of some, without markup inside."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {tag: [] for tag in ("td", "th", "h3", "li", "pre")}
        self.rows: dict[tuple[str, float], list[str]] = {}
        self._inside: list[str] = []
        self._row: list[str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attributes)
        if tag == "tr":
            self._row = None
            if variant := found.get("data-variant"):
                key = (variant, float(found["data-temperature"] or ""))
                self._row = self.rows.setdefault(key, [])
        if tag in self.texts:
            self._inside.append(tag)
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.texts:
            assert self._inside.pop() == tag
            if tag in ("td", "th") and self._row is not None:
                self._row.append(" ".join(self.texts[tag][-1].split()))

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside[-1]][-1] += data


def parsed(directory: Path) -> Parsed:
    report.write_report(directory)
    return Parsed((directory / "report.html").read_text())


def test_the_table_holds_the_numbers_of_the_result(tmp_path: Path) -> None:
    """All of them, in their cells; each variant once, whether or not it has a line."""
    result = write_run(tmp_path, variants=VARIANTS + LZ_SWEEP, temperatures=[0.0, 0.7])
    rows = parsed(tmp_path).rows
    assert len(rows) == len(result["cells"]) == 14

    def ends(ci: list[float], sign: str = "") -> str:
        return f"[{100 * ci[0]:{sign}.1f}, {100 * ci[1]:{sign}.1f}]".replace("-", MINUS)

    def change(found: dict[str, Any]) -> str:
        mean = f"{100 * found['mean']:+.1f}".replace("-", MINUS)
        return f"{mean} {ends(found['ci'], '+')}"

    for cell in result["cells"]:
        accuracy, degenerate, against = cell["accuracy"], cell["degenerate"], cell["against_none"]
        spread = "" if accuracy["std"] is None else f" ± {100 * accuracy['std']:.1f}"
        assert rows[cell["variant"], cell["temperature"]] == [
            f"{cell['temperature']:g}",
            f"{100 * accuracy['mean']:.1f}{spread} {ends(accuracy['ci'])}",
            change(against["accuracy"]) if against else DASH,
            f"{100 * degenerate['mean']:.1f} {ends(degenerate['ci'])}",
            change(against["degenerate"]) if against else DASH,
            f"{cell['tokens']['mean']:.0f}",
            f"{100 * cell['rep_4_gram']['mean']:.1f}",
            f"{cell['compression_ratio']['mean']:.2f}",
            str(cell["loops"]["most_copies"]),
            str(cell["loops"]["cut_off"]),
            f"stop {cell['finish']['stop']}, length {cell['finish']['length']}",
        ]


def test_a_result_without_loops_is_still_drawn(tmp_path: Path) -> None:
    """Those of before they were counted."""
    result = write_run(tmp_path)
    for cell in result["cells"]:
        del cell["loops"]
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert all(row[-3:-1] == [DASH, DASH] for row in parsed(tmp_path).rows.values())


def test_outputs_stay_text(tmp_path: Path) -> None:
    write_run(tmp_path)
    page = parsed(tmp_path)
    assert not {"script", "img", "b"} & set(page.tags)
    prompt, looping, other, *_ = page.texts["pre"]
    assert all(HOSTILE in text for text in (prompt, looping, other))
    assert looping.startswith("…First I add")
    assert looping.endswith("… and so on")


def test_the_loop_is_marked_and_nothing_else(tmp_path: Path) -> None:
    """Not the two copies that stand before it; a loop that ends is followed by what came next."""
    result = write_run(tmp_path)
    (worst,) = result["worst"]
    unit = worst["unit_text"]
    shown = view.split_example(worst)
    assert shown["before"].endswith(2 * unit + " then")
    assert (shown["copies"], shown["more"], shown["after"]) == (500 // len(unit), True, "")
    ended = worst | {"text": f"Well, {3 * unit} done"}
    shown = view.split_example(ended)
    assert (shown["before"], shown["copies"]) == ("Well, ", 3)
    assert (shown["more"], shown["after"]) == (False, " done")
    assert view.split_example(worst | {"unit_text": ""})["copies"] == 0


def test_the_same_result_alone_gives_the_same_bytes(tmp_path: Path) -> None:
    """A committed result comes without its samples: the command draws it all the same."""
    names = ["overview.png", "overview.svg", "report.html", "sweeps.png", "sweeps.svg"]
    for run in ("one", "two"):
        write_run(tmp_path / run, variants=VARIANTS + LZ_SWEEP, temperatures=[0.0, 1.0])
        repetition.main(["report", str(tmp_path / run)])
        assert sorted(p.name for p in (tmp_path / run).iterdir() if p.stem != "result") == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_each_task_has_its_charts(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("AIME 2024", "gpqa"), temperatures=[0.0, 1.0])
    page = parsed(tmp_path)
    assert page.tags.count("section") == 2
    assert page.texts["h3"].count("Over temperature") == 2
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "overview-AIME-2024.png",
        "overview-gpqa.png",
    }


def test_a_task_without_answers_has_no_accuracy(tmp_path: Path) -> None:
    write_run(tmp_path, graded=False)
    page = parsed(tmp_path)
    assert page.tags.count("svg") == 1
    assert not any("ccura" in text for texts in page.texts.values() for text in texts)
    assert len(page.texts["li"]) == 1


def test_one_temperature_and_one_part(tmp_path: Path) -> None:
    write_run(tmp_path, temperatures=[0.6], parts=(), levels=("1",))
    page = parsed(tmp_path)
    assert page.tags.count("svg") == 2
    assert page.texts["h3"] == ["Over temperature", "All numbers", "The worst loops"]


def test_the_judge_is_shown_where_there_is_one(tmp_path: Path) -> None:
    result = write_run(tmp_path, temperatures=[0.0, 1.0], judged=True)
    page = parsed(tmp_path)
    assert "Verdicts of the judge" in page.texts["h3"]
    shares = [f"{100 * cell['judge']['mean']:.1f}" for cell in result["cells"]]
    judged = page.texts["td"]
    assert all(any(text.startswith(f"{share} ") for text in judged) for share in shares)
    counts = [cell["agreement"] for cell in result["cells"]]
    same = sum(c["both"] + c["neither"] for c in counts) / sum(sum(c.values()) for c in counts)
    assert view.Task("pocket", result).agreement() == pytest.approx(same)


def test_parts_are_in_their_natural_order(tmp_path: Path) -> None:
    result = write_run(tmp_path, temperatures=[0.0], levels=("10", "9", "2"))
    (levels,) = view.Task("pocket", result).parts("levels")
    assert levels.columns == ["2", "9", "10"]
    cell = result["cells"][1]
    expected = [cell["levels"][name]["accuracy"]["mean"] for name in levels.columns]
    assert levels.rows[1] == cell["variant"]
    assert levels.values["accuracy"][1] == expected


def test_sweeps_are_by_strength_and_begin_without_a_penalty(tmp_path: Path) -> None:
    result = write_run(tmp_path, variants=LZ_SWEEP[::-1] + VARIANTS, temperatures=[0.0, 1.0])
    (sweep,) = view.Task("pocket", result).sweeps()
    assert sweep.rows == ["none", "0.05", "0.15", "0.3"]
    assert sweep.columns == ["0", "1"]
    means = {(c["variant"], c["temperature"]): c["accuracy"]["mean"] for c in result["cells"]}
    names = ["none", "lz 0.05", "lz 0.15", "lz 0.3"]
    expected = [[means[name, t] for t in (0.0, 1.0)] for name in names]
    assert sweep.values["accuracy"] == expected


def test_colours_do_not_stretch_noise() -> None:
    def heat(*shares: float | None) -> Any:
        return view.HeatMap("lz", "temperature", ["0", "1"], ["0.1"], {"accuracy": [shares]})

    assert charts.ends([heat(0.3, None), heat(0.9, 0.4)], "accuracy") == (0.3, 0.9)
    assert charts.ends([heat(0.50, 0.52)], "accuracy") == pytest.approx((0.32, 0.52))
    assert charts.ends([heat(0.0, 0.01)], "accuracy") == (0.0, 0.2)


def test_lines_are_of_one_strength_each(tmp_path: Path) -> None:
    """The one measured at the most temperatures, then with the most samples, then the best."""
    result = write_run(tmp_path, variants=VARIANTS + LZ_SWEEP, temperatures=[0.0, 1.0])
    names = [name for name, *_ in VARIANTS]

    def main() -> list[str]:
        return view.Task("pocket", result).main

    assert main() == names  # 0.15 is the most accurate here
    for cell in result["cells"]:
        if cell["variant"] == "lz 0.3":
            cell["accuracy"]["mean"] += 0.3
    assert main() == ["none", "lz 0.3", *names[2:]]
    for cell in result["cells"]:
        if cell["variant"] == "lz 0.05":
            cell["samples"] += 1
    assert main() == ["none", "lz 0.05", *names[2:]]
    result["cells"] = [
        cell
        for cell in result["cells"]
        if (cell["variant"], cell["temperature"]) != ("lz 0.05", 1.0)
    ]
    assert main() == ["none", "lz 0.3", *names[2:]]


def test_headlines_say_what_the_intervals_allow(tmp_path: Path) -> None:
    result = write_run(tmp_path, variants=VARIANTS[:3], temperatures=[0.0, 1.0])
    of_lz, of_rate = (
        next(c for c in result["cells"] if c["variant"] == v[0]) for v in VARIANTS[1:3]
    )
    of_lz["against_none"]["accuracy"]["ci"] = [0.01, 0.07]
    of_rate["against_none"]["accuracy"]["ci"] = [-0.01, 0.07]
    loops, right, best = view.Task("pocket", result).headlines()
    assert loops == (
        f"At temperature 0, 40.0{SPACE}% [37.0, 43.0] of the outputs without a penalty are "
        f"degenerate. Clearly fewer with lz 0.15 (2.0{SPACE}%), lz rate 0.15 (12.0{SPACE}%)."
    )
    assert right.endswith(
        f"Clearly more with lz 0.15 (57.1{SPACE}%); no clear difference with "
        f"lz rate 0.15 (55.1{SPACE}%)."
    )
    assert best.startswith("The highest of all 6 accuracies is with lz 0.15 at temperature 0: 57.1")
    assert best.endswith("; the intervals overlap.")
    of_lz["accuracy"]["ci"] = [0.6, 0.7]
    assert view.Task("pocket", result).headlines()[2].endswith("the intervals do not overlap.")
    unpaired = copy.deepcopy(result)
    unpaired["cells"] = [cell for cell in result["cells"] if cell["variant"] != "none"]
    assert view.Task("pocket", unpaired).headlines() == []


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, ""), (0.0, "0"), (0.004, "<1"), (0.12, "12"), (0.996, ">99"), (1.0, "100")],
)
def test_small_cells_never_round_to_all_or_nothing(share: float | None, text: str) -> None:
    assert view.short(share) == text


def test_missing_matplotlib_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"pip install matplotlib==\d"):
        report.write_report(tmp_path)


def test_the_result_alone_is_enough(tmp_path: Path) -> None:
    """Of a run, only its result.json is committed; it may have no loops and no commit."""
    result = write_run(tmp_path / "run", temperatures=[0.0])
    result["worst"], result["run"]["commit"] = [], None
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    page = parsed(tmp_path / "run")
    assert "The worst loops" not in page.texts["h3"]
