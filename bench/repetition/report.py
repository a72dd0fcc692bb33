"""The report of a run: plots, and one page that needs no other file.

Everything is drawn from the run's result.json. The same result gives the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from bench.common import ROOT
from bench.repetition import charts
from bench.repetition.charts import Line
from bench.repetition.view import MEASURES, Task, interval, number, percent, short


def _facts(result: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, str]:
    """What was run, in a few words each."""
    run = result["run"]
    return {
        "Tasks": ", ".join(f"{task.name} ({task.cells[0]['items']} items)" for task in tasks),
        "Samples": f"{sum(cell['samples'] for cell in result['cells']):,}",
        "Longest output": f"{run['max_tokens']:,} tokens",
        "Date": run["date"],
        "Machine": f"{run['cpu']}, {run['cores']} cores",
        "Commit": re.sub(r"(?<=[0-9a-f]{12})[0-9a-f]+", "", run["commit"] or "unknown"),
    }


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        pins = (ROOT / "scripts" / "requirements-test.txt").read_text()
        pin = next(line for line in pins.splitlines() if line.startswith("matplotlib=="))
        raise SystemExit(
            f"the report needs matplotlib: {sys.executable} -m pip install {pin}"
        ) from None


def write_report(directory: Path) -> None:
    """Draw the result of a run.

    Reads `directory`/result.json and writes beside it report.html, overview.png and .svg (accuracy
    and degenerate share over temperature) and, where a family has several strengths, sweeps.png and
    .svg. With several tasks, the task is part of the plots' names.

    Raises:
        SystemExit: matplotlib is missing; the message says how to install it.
    """
    _require_matplotlib()
    result = json.loads((directory / "result.json").read_text())
    tasks = [Task(name, result) for name in dict.fromkeys(c["task"] for c in result["cells"])]
    lines = charts.lines(tasks)
    drawn = {}
    for task in tasks:
        suffix = f"-{re.sub(r'[^A-Za-z0-9]+', '-', task.name)}" if len(tasks) > 1 else ""
        drawn[task.name] = _draw(task, lines, directory, suffix)
    page = _template().render(
        result=result,
        run=result["run"],
        facts=_facts(result, tasks),
        tasks=tasks,
        charts=drawn,
        lines=lines,
        ink=charts.INK,
        grid=charts.GRID,
        heat=charts.HEAT,
        measures=MEASURES,
        ends=charts.ends,
    )
    (directory / "report.html").write_text(page)


def _draw(task: Task, lines: Mapping[str, Line], directory: Path, suffix: str) -> list[str]:
    """Write the plots of a task; return its line charts as SVG elements."""
    import matplotlib as mpl

    variables = {line.colours[0]: line.key for line in lines.values()}
    variables |= {charts.INK[0]: "ink", charts.GRID[0]: "grid"}
    with mpl.rc_context(charts.SETTINGS):
        charts.save(charts.overview(task, task.measures, lines), directory / f"overview{suffix}")
        if sweeps := task.sweeps():
            charts.save(charts.heat_maps(sweeps), directory / f"sweeps{suffix}")
        return [
            charts.inline(
                charts.overview(task, [measure], lines),
                f"{MEASURES[measure]} over temperature, task {task.name}",
                variables,
            )
            for measure in task.measures
        ]


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "short": short,
        "interval": interval,
        "number": number,
    }
    return environment.get_template("report.html.j2")
