"""compose.yaml, the Kubernetes manifests and the monitoring: against their schemas, each other,
and the programs that read them. Each kind of check is also shown something wrong."""

from __future__ import annotations

import argparse
import copy
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest

from deployment import COMPOSE, MANIFESTS, Json, containers, load, pod_templates, probe_paths
from patches_tool.upstream import Lock
from releases import PATCHES
from sglang_lz.startup import serve
from sglang_lz.startup.serve import RECOMMENDED

# The first release that knows a preStop of `sleep` without being asked to, and the last.
KUBERNETES = ("1.30", "1.37")
UID = 10001
PORT = 30000

LOCK = Lock.load(PATCHES / "upstream.lock")


def image(flavour: str) -> str:
    """The name that scripts/image gives."""
    return f"sglang-lz:{LOCK.version}-lz{LOCK.revision}-{flavour}"


FILES = ("single-node.yaml", "multi-node.yaml", "router.yaml")
RESOURCES = [(file, resource) for file in FILES for resource in load(MANIFESTS / file)]
WORKLOADS = [
    pytest.param(resource, id=f"{file}:{resource['kind']}")
    for file, resource in RESOURCES
    if any(pod_templates(resource))
]


def validate(resource: Json, version: str) -> None:
    """Raise jsonschema.ValidationError unless the API server of that release would take it.

    LeaderWorkerSet is no resource of Kubernetes: its pod templates are checked.
    """
    if resource["kind"] != "LeaderWorkerSet":
        kubernetes_validate.validate(resource, version, strict=True)
        return
    head = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": resource["metadata"]}
    for template in pod_templates(resource):
        kubernetes_validate.validate({**head, "template": template}, version, strict=True)


def find(kind: str, name: str) -> Json:
    """A copy of the one resource of that kind and name."""
    (found,) = (
        resource
        for _, resource in RESOURCES
        if (resource["kind"], resource["metadata"]["name"]) == (kind, name)
    )
    return copy.deepcopy(found)


class TestSchemas:
    @pytest.mark.parametrize("version", KUBERNETES)
    @pytest.mark.parametrize("file", [*FILES, "namespace.yaml"])
    def test_kubernetes_accepts_every_resource(self, file: str, version: str) -> None:
        for resource in load(MANIFESTS / file):
            validate(resource, version)

    @pytest.mark.parametrize(
        ("old", "new", "status"), [("", "", 0), ("read_only:", "readonly:", 1)]
    )
    def test_compose_accepts_its_file_and_refuses_a_wrong_one(
        self, tmp_path: Path, old: str, new: str, status: int
    ) -> None:
        text = COMPOSE.read_text()
        assert old in text
        file = tmp_path / "compose.yaml"
        file.write_text(text.replace(old, new))
        command = [sys.executable, "-m", "check_jsonschema"]
        command += ["--builtin-schema", "vendor.compose-spec", str(file)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == status, result.stdout


@cache
def server_parser() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


@cache
def router_parser() -> argparse.ArgumentParser:
    from smg.router_args import RouterArgs

    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    return parser


def compose_default(text: str) -> str:
    """A value of compose.yaml where the environment sets nothing."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def server_arguments(container: Json, group_size: int = 1) -> argparse.Namespace:
    """What `sglang-lz serve` and SGLang make of a container's arguments; SystemExit if refused."""
    set_by_lws = {"LWS_LEADER_ADDRESS": "leader", "LWS_GROUP_SIZE": group_size}
    set_by_lws["LWS_WORKER_INDEX"] = group_size - 1
    arguments = [
        re.sub(r"\$\((\w+)\)", lambda found: str(set_by_lws[found[1]]), argument)
        for argument in container["args"]
    ]
    return server_parser().parse_args(serve.server_arguments("cuda", arguments))


def servers() -> Iterator[tuple[Json, int]]:
    """Every container of a server, and how many pods make one."""
    for _, resource in RESOURCES:
        size = resource.get("spec", {}).get("leaderWorkerTemplate", {}).get("size", 1)
        for container in containers(resource):
            if container["name"] == "server":
                yield container, size


class TestArguments:
    def test_the_server_accepts_them_and_gets_its_gpus(self) -> None:
        seen = 0
        for container, size in servers():
            args = server_arguments(container, size)
            gpus = container["resources"]["limits"]["nvidia.com/gpu"] * size
            assert args.tp_size * args.pp_size * args.dp_size == gpus
            assert (args.nnodes, args.node_rank) == (size, size - 1)
            assert args.enable_metrics
            assert args.preferred_sampling_params == RECOMMENDED
            seen += 1
        assert seen == len(FILES)

    def test_compose_serves_with_them_too(self) -> None:
        services = load(COMPOSE)[0]["services"]
        for name in ("cpu", "cuda"):
            command = ["--model-path=demo", *map(compose_default, services[name]["command"])]
            args = server_parser().parse_args(serve.server_arguments("cuda", command))
            assert args.enable_metrics
            assert args.preferred_sampling_params == RECOMMENDED
        (device,) = services["cuda"]["deploy"]["resources"]["reservations"]["devices"]
        assert int(compose_default(device["count"])) == args.tp_size

    def test_the_router_accepts_its_own(self) -> None:
        (container,) = containers(find("Deployment", "sglang-lz-router"))
        args = router_parser().parse_args(container["args"])
        assert args.service_discovery
        assert args.port == PORT
        (labels,) = (
            template["metadata"]["labels"]
            for template in pod_templates(find("StatefulSet", "sglang-lz-replica"))
        )
        assert dict(part.split("=", 1) for part in args.selector) == labels
        assert args.service_discovery_port == PORT
        metrics = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert args.prometheus_port == metrics["metrics"]
        assert args.health_check_endpoint in probe_paths(next(servers())[0])
        with pytest.raises(SystemExit):
            router_parser().parse_args(["--polici=random"])


def violations(template: Json) -> list[str]:
    """Where a pod template is laxer than the "restricted" profile, or than we promise."""
    spec = template["spec"]
    pod = spec.get("securityContext", {})
    wrong = [key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    wrong += [] if pod.get("runAsNonRoot") is True else ["runAsNonRoot"]
    wrong += [] if pod.get("runAsUser") == UID else ["runAsUser"]
    wrong += [] if pod.get("seccompProfile") == {"type": "RuntimeDefault"} else ["seccompProfile"]
    for container in spec["containers"]:
        own = container.get("securityContext", {})
        wrong += [] if own.get("allowPrivilegeEscalation") is False else ["privileges"]
        wrong += [] if own.get("readOnlyRootFilesystem") is True else ["root file system"]
        wrong += [] if own.get("capabilities") == {"drop": ["ALL"]} else ["capabilities"]
        wrong += [
            entry["name"]
            for entry in container.get("env", ())
            if "TOKEN" in entry["name"] and "value" in entry
        ]
    wrong += ["hostPath" for volume in spec["volumes"] if "hostPath" in volume]
    return wrong


class TestPods:
    @pytest.mark.parametrize("resource", WORKLOADS)
    def test_they_meet_the_restricted_profile(self, resource: Json) -> None:
        (namespace,) = load(MANIFESTS / "namespace.yaml")
        labels = namespace["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        for template in pod_templates(resource):
            assert not violations(template)

    def test_the_router_may_only_read_pods(self) -> None:
        role = find("Role", "sglang-lz-router")
        assert role["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
        ]
        (subject,) = find("RoleBinding", "sglang-lz-router")["subjects"]
        (namespace,) = load(MANIFESTS / "namespace.yaml")
        assert subject["namespace"] == namespace["metadata"]["name"]
        for _, resource in RESOURCES:
            for template in pod_templates(resource):
                account = template["spec"].get("serviceAccountName")
                mounts = template["spec"].get("automountServiceAccountToken", True)
                assert mounts == (account == subject["name"])

    def test_only_the_router_reaches_the_replicas(self) -> None:
        spec = find("NetworkPolicy", "sglang-lz-replica")["spec"]
        (rule,) = spec["ingress"]
        (peer,) = rule["from"]
        for selector, owner in (
            (spec["podSelector"], find("StatefulSet", "sglang-lz-replica")),
            (peer["podSelector"], find("Deployment", "sglang-lz-router")),
        ):
            assert selector == owner["spec"]["selector"]

    def test_probes_use_endpoints_that_the_pod_serves(self) -> None:
        source = upstream("srt/entrypoints/http_server.py").read_text()
        served = set(re.findall(r'^@app\.get\("(/\w+)"\)', source, re.M))
        source = upstream("srt/utils/common.py").read_text()
        # Pods of a multi-node server other than the first.
        _, others = source.split("def launch_dummy_health_check_server")
        served_by_others = set(re.findall(r'^    @app\.get\("(/\w+)"\)', others, re.M))
        assert "/ready" in served - served_by_others
        for container, size in servers():
            assert probe_paths(container)
            assert probe_paths(container) <= (served_by_others if size > 1 else served)


class TestImages:
    def test_they_are_this_version(self) -> None:
        images = {c["image"] for _, resource in RESOURCES for c in containers(resource)}
        assert images == {image("cuda"), image("router")}


class TestCompose:
    @pytest.fixture(scope="class")
    def services(self) -> dict[str, Json]:
        services: dict[str, Json] = load(COMPOSE)[0]["services"]
        return services

    def test_every_service_is_confined(self, services: dict[str, Json]) -> None:
        for service in services.values():
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            for port in service["ports"]:
                assert compose_default(port).startswith("127.0.0.1:")
            assert not re.search(r"(:latest|/[^:]+)$", service["image"])


def upstream(path: str) -> Path:
    """A file of the installed SGLang, without importing it."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path
