"""The content of compose.yaml, the manifests and the dashboard, for tests to compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "compose.yaml"
MANIFESTS = ROOT / "docker" / "kubernetes"
MONITORING = ROOT / "docker" / "monitoring"
DASHBOARD = MONITORING / "grafana" / "dashboards" / "sglang-lz.json"

# Counters of events that a healthy server may never have: exported from the first one on.
EVENTS = frozenset({"sglang:num_aborted_requests_total", "sglang:num_retracted_requests_total"})

Json = dict[str, Any]


def load(path: Path) -> list[Json]:
    """The documents of a YAML file; a key given twice is an error, as it is to kubectl."""
    return list(YAML(typ="safe").load_all(path))


def pod_templates(resource: Json) -> Iterator[Json]:
    """The pod templates of a resource, whatever its kind."""
    spec = resource.get("spec", {})
    for holder in (spec, spec.get("leaderWorkerTemplate", {})):
        for name in ("template", "leaderTemplate", "workerTemplate"):
            if name in holder:
                yield holder[name]


def containers(resource: Json) -> Iterator[Json]:
    """The containers of all its pods."""
    for template in pod_templates(resource):
        yield from template["spec"]["containers"]


def probe_paths(container: Json) -> set[str]:
    """Where the kubelet asks."""
    return {probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")}


@dataclass(frozen=True)
class Query:
    """A query of the dashboard: the series that it reads and the labels that it names."""

    panel: str
    series: frozenset[str]
    labels: frozenset[str]


def read_query(panel: str, expression: str) -> Query:
    """Parse PromQL with Grafana's variables in it.

    Raises:
        ValueError: it is not PromQL.
    """
    series, labels = set(), set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            series.add(node.name)
            labels.update(matcher.name for matcher in node.matchers.matchers)
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            labels.update(node.modifier.labels)

    tree = promql_parser.parse(expression.replace("$__rate_interval", "1m"))
    promql_parser.walk(tree, visit)
    return Query(panel, frozenset(series), frozenset(labels))


def dashboard_queries() -> list[Query]:
    """Every query of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [
        read_query(panel["title"], target["expr"])
        for panel in panels
        for target in panel.get("targets", ())
    ]
