"""The dashboard's row "Loops" over a model that loops: its own queries, asked of a Prometheus.

The demo model is asked without a penalty, then with the guard, then with `lz_onset`. Grafana is not
needed: the panels' titles and queries are read from the dashboard's file.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from bench import common
from bench.guard.outputs import ONSET, STOP
from bench.processes import Background, answers, free_port
from bench.repetition import tasks
from bench.repetition.server import serving

DASHBOARD = common.ROOT / "docker/monitoring/grafana/dashboards/sglang-lz.json"
ROW = "Loops"
PHASES: dict[str, dict[str, object]] = {"no penalty": {}, "guard": STOP, "lz_onset 3": ONSET}
PHASE_SECONDS = 45
INTERVAL = "15s"
CLIENTS = 8
MAX_TOKENS = 256
SERVER = ("--enable-metrics", "--lz-observe-loops", "1")


def measure(prometheus: Path) -> dict[str, Any]:
    """Every series of the row's panels, a value a second."""
    with tempfile.TemporaryDirectory(prefix="dashboard-") as folder:
        place = Path(folder)
        with serving("demo", SERVER, place / "server.log") as url, _as_text(url) as target:
            port = free_port()
            config = {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [
                    {"job_name": "sglang", "static_configs": [{"targets": [target]}]}
                ],
            }
            (place / "prometheus.yml").write_text(json.dumps(config))
            command = [
                str(prometheus),
                f"--config.file={place / 'prometheus.yml'}",
                f"--storage.tsdb.path={place / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            with Background(command, name="prometheus", log=place / "prometheus.log") as running:
                running.wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 60)
                phases = [_ask(url, fields) for fields in PHASES.values()]
                panels = [
                    _panel(f"http://127.0.0.1:{port}", panel, phases[0][0], phases[-1][1])
                    for panel in row()
                ]
    begin = phases[0][0]
    return {
        "measures": f"the panels of the dashboard's row {ROW}, seconds from the first request on",
        "phases": {
            name: [round(first - begin, 1), round(last - begin, 1)]
            for name, (first, last) in zip(PHASES, phases, strict=True)
        },
        "interval": INTERVAL,
        "panels": panels,
    }


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the panels in the dashboard's order."""
    figure, grid = plt.subplots(2, 2, figsize=(11, 6), layout="constrained", sharex=True)
    for axes, panel in zip(grid.flat, found["panels"], strict=True):
        for i, (name, points) in enumerate(panel["series"].items()):
            if any(value for _, value in points):
                style = ("-", "--", ":")[i % 3]
                axes.plot(*zip(*points, strict=True), style, label=name)
        for first, _ in list(found["phases"].values())[1:]:
            axes.axvline(first, color="grey", linewidth=0.8)
        axes.set_title(f"{panel['title']} ({panel['unit']})", fontsize=10)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7, frameon=False, loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[1]:
        names = "; ".join(
            f"{name} from {first:.0f}" for name, (first, _) in found["phases"].items()
        )
        axes.set_xlabel(f"seconds ({names})", fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def table(found: dict[str, Any]) -> str:
    """The largest value of each series, in Markdown."""
    lines = ["| panel | series | largest |", "|---|---|---|"]
    lines += [
        f"| {panel['title']} | {name} | {max(value for _, value in points):.2f} |"
        for panel in found["panels"]
        for name, points in panel["series"].items()
    ]
    return "\n".join(lines)


def row() -> list[dict[str, Any]]:
    """The panels of the row, as the dashboard has them."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    start = next(i for i, panel in enumerate(panels) if panel["title"] == ROW)
    rest = panels[start + 1 :]
    end = next((i for i, panel in enumerate(rest) if panel["type"] == "row"), len(rest))
    found: list[dict[str, Any]] = rest[:end]
    return found


def _ask(url: str, fields: dict[str, object]) -> tuple[float, float]:
    """Keep CLIENTS requests running for a phase; when it began and ended, in Unix seconds."""
    items = tasks.load(f"jsonl={tasks.PROMPTS}")
    begin = time.time()
    numbers = count()

    def client(_: int) -> None:
        while time.time() < begin + PHASE_SECONDS:
            item = items[next(numbers) % len(items)]
            body = {
                "model": "demo",
                "messages": [{"role": "user", "content": item.prompt}],
                "max_tokens": MAX_TOKENS,
                "temperature": 0,
                **fields,
            }
            common.request(f"{url}/v1/chat/completions", body)

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return begin, time.time()


def _panel(prometheus: str, panel: dict[str, Any], first: float, last: float) -> dict[str, Any]:
    series = {}
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", INTERVAL).replace("$instance", ".*")
        asked = {"query": query, "start": first, "end": last, "step": 1}
        answer = common.request(f"{prometheus}/api/v1/query_range?{urllib.parse.urlencode(asked)}")
        for one in answer["data"]["result"]:
            name = target["legendFormat"]
            for label, value in one["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            points = [
                [round(at - first), round(float(value), 4)]
                for at, value in one["values"]
                if value != "NaN"
            ]
            if points:
                series[name] = points
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return {"title": panel["title"], "unit": unit, "series": series}


class _as_text:
    """Passes /metrics on as text, which old versions of Prometheus do not ask for by themselves."""

    def __init__(self, url: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with urllib.request.urlopen(f"{url}/metrics") as answer:
                    body = answer.read()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
