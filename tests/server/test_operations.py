"""For operators: the dashboard's metrics and the pods' probes of a running server."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from bench.http_client import HTTP
from deployment import EVENTS, MANIFESTS, containers, dashboard_queries, load, probe_paths
from server.client import post, post_ok
from server.configurations import on
from server.launch import Server


@on("overlap")
def test_the_server_exports_every_series_of_the_dashboard(server: Server) -> None:
    body = {"text": "a b c a b c", "sampling_params": {"max_new_tokens": 8}}
    post_ok(server, "/generate", body)
    post(server, "/generate", {**body, "stream": True})
    # As docker/monitoring/prometheus.yml has it: the names depend on it.
    accept = {"Accept": "text/plain;version=0.0.4"}
    text = HTTP.get(f"{server.url}/metrics", headers=accept).text
    exported: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            exported.setdefault(sample.name, {"instance"}).update(sample.labels)
    for query in dashboard_queries():
        assert query.series <= exported.keys() | EVENTS, query.panel
        for series in query.series & exported.keys():
            assert query.labels <= exported[series], query.panel


@on("overlap")
def test_the_probes_find_a_ready_server(server: Server) -> None:
    paths = {
        path
        for manifest in ("single-node.yaml", "multi-node.yaml", "router.yaml")
        for resource in load(MANIFESTS / manifest)
        for container in containers(resource)
        if container["name"] == "server"
        for path in probe_paths(container)
    }
    assert "/health_generate" in paths
    for path in paths:
        assert HTTP.get(f"{server.url}{path}").status_code == 200, path
