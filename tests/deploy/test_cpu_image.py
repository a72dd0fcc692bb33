"""The CPU image as a user runs it: unprivileged, with nothing to write to but its cache.

One container serves all of them; the last test ends it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.http_client import HTTP, lines
from bench.models.detector import is_degenerate
from bench.processes import free_port
from deploy.containers import Podman

pytestmark = pytest.mark.xdist_group("containers")

STARTUP_SECONDS = 600
GRACE_SECONDS = 120


@dataclass(frozen=True)
class Container:
    """A running container of the image, and where its server listens."""

    podman: Podman
    id: str
    url: str

    def execute(self, *command: str) -> tuple[int, str]:
        """Run a command in it as its user; returns the status and the output."""
        done = self.podman.run("exec", self.id, *command)
        return done.returncode, (done.stdout + done.stderr).strip()

    def state(self) -> dict[str, Any]:
        """What podman knows of how it runs."""
        return self.podman.inspect("container", self.id)["State"]

    def init(self) -> Path:
        """The folder in /proc of its first process."""
        return Path("/proc", str(self.state()["Pid"]))

    def chat(self, **fields: Any) -> httpx.Response:
        """Ask the image's model what makes it loop, decoding greedily."""
        prompt = "Write a recipe for vegetable soup with exact quantities and ten steps."
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "smollm2-135m", "temperature": 0, "max_tokens": 120, "messages": messages}
        url = f"{self.url}/v1/chat/completions"
        request = HTTP.build_request("POST", url, json=body | fields, timeout=GRACE_SECONDS)
        return HTTP.send(request, stream=fields.get("stream", False))


@pytest.fixture(scope="module")
def image(podman: Podman, base: str, build_options: list[str]) -> str:
    return podman.build("cpu", base, "--engine", "podman", "--", *build_options)


# As docker has it, which puts nothing on /tmp by itself and knows no user but the image's.
AS_DOCKER = ("--read-only", "--read-only-tmpfs=false", "--passwd=false")
CONFINED = ("--cap-drop=all", "--security-opt=no-new-privileges", "--network=host")


@contextlib.contextmanager
def running(podman: Podman, image: str, *options: str) -> Iterator[Container]:
    """A container whose server is healthy; removed at the end."""
    port = free_port()
    # Without systemd there is nothing that podman could set its timer in: we check by hand.
    limits = ["--init", *AS_DOCKER, "--tmpfs=/tmp:exec", *CONFINED, "--health-interval=disable"]
    variables = ["--env=SGLANG_LZ_HOST=127.0.0.1", f"--env=SGLANG_LZ_PORT={port}"]
    container = Container(
        podman,
        podman("run", "--detach", *limits, *variables, *options, image),
        f"http://127.0.0.1:{port}",
    )
    try:
        deadline = time.monotonic() + STARTUP_SECONDS
        while podman.run("healthcheck", "run", container.id).returncode != 0:
            state = container.state()
            log = podman.run("logs", "--tail", "40", container.id)
            assert state["Running"], f"the server ended: {log.stdout}{log.stderr}"
            assert time.monotonic() < deadline, f"not healthy: {log.stdout}{log.stderr}"
            time.sleep(1)
        yield container
    finally:
        podman("rm", "--force", "--volumes", "--time", "0", container.id)


@pytest.fixture(scope="module")
def container(podman: Podman, image: str) -> Iterator[Container]:
    with running(podman, image) as container:
        yield container


def word_ids(text: str) -> list[int]:
    words = text.split()
    return [words.index(word) for word in words]


def test_the_model_loops_and_the_penalty_ends_it(container: Container) -> None:
    def answer(**fields: Any) -> str:
        response = container.chat(**fields)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]["content"]

    assert is_degenerate(word_ids(answer(lz_penalty=0, repetition_detection={})), 10)
    assert not is_degenerate(word_ids(answer(lz_penalty=0.15, lz_onset=0)), 10)
    assert not is_degenerate(word_ids(answer()), 10)  # the image starts with --end-loops


def test_the_server_is_unprivileged(container: Container) -> None:
    assert container.execute("id", "-u") == (0, "10001")
    init = container.init()
    user = str(host_uid(init, 10001))
    (server,) = (init / "task" / init.name / "children").read_text().split()
    for process in (init, init.with_name(server)):
        status = (process / "status").read_text().splitlines()
        fields = dict(line.split(":\t") for line in status if ":\t" in line)
        assert fields["Uid"].split() == [user] * 4
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
        assert fields["NoNewPrivs"] == "1"


def test_clusters_may_choose_the_user(podman: Podman, image: str) -> None:
    """As OpenShift does: a user that nobody knows, in group 0."""
    with running(podman, image, "--user=1234:0") as container:
        assert container.execute("id", "-u") == (0, "1234")
        assert container.chat(lz_penalty=0.15).status_code == 200
        assert container.execute("touch", "/cache/file") == (0, "")


@pytest.mark.parametrize(
    ("options", "arguments", "sentence"),
    [
        ((), (), "no folder for temporary files can be written; set TMPDIR to one"),
        (("--tmpfs=/tmp:exec",), ("--polici=x",), "unrecognized arguments: --polici=x; "),
        (("--tmpfs=/tmp:exec",), ("--model-path=/no/model",), "--model-path /no/model does not"),
    ],
)
def test_a_failed_start_ends_with_one_sentence(
    podman: Podman, image: str, options: list[str], arguments: list[str], sentence: str
) -> None:
    done = podman.run("run", "--rm", *AS_DOCKER, *CONFINED, *options, image, *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"sglang-lz: {sentence}")
    assert "Traceback" not in done.stderr


def test_a_failed_health_check_is_one_line(podman: Podman, image: str) -> None:
    config = podman.inspect("image", image)["Healthcheck"]
    assert config["Interval"] == 5_000_000_000  # ns: health follows readiness within seconds
    _, *check = config["Test"]
    port = free_port()
    options = [*AS_DOCKER, *CONFINED, f"--env=SGLANG_LZ_PORT={port}", "--entrypoint="]
    # Its own timer, for which podman wants systemd, would add to what is said.
    done = podman.run("run", "--rm", "--no-healthcheck", *options, image, *check)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"no answer on port {port}: ")


@pytest.mark.parametrize("folder", ["/", "/run", "/usr/local/lib", "/var/tmp"])
def test_nothing_can_be_written_outside_the_cache(container: Container, folder: str) -> None:
    status, output = container.execute("touch", f"{folder}/file")
    assert status != 0
    assert "Read-only file system" in output


def test_the_doctor_passes(container: Container) -> None:
    status, output = container.execute("sglang-lz", "doctor")
    assert status == 0, output
    assert "FAIL" not in output


def test_installed_packages_are_compatible(container: Container) -> None:
    """But for one package that only benchmarks read, which the lock leaves out."""
    _, output = container.execute("python3", "-m", "pip", "check")
    (line,) = output.splitlines()
    assert line.endswith("requires datasets, which is not installed.")


def test_sigterm_lets_a_running_request_finish(container: Container) -> None:
    response = container.chat(stream=True, lz_penalty=0.15, ignore_eos=True, max_tokens=600)
    events = (line for line in lines(response) if line)
    assert json.loads(next(events).removeprefix(b"data: "))["choices"]  # it has begun
    namespace, monitor = (container.init() / "ns/pid").readlink(), container.state()["ConmonPid"]
    running = processes_of(namespace, monitor)
    assert {container.init(), Path("/proc", str(monitor))} < set(running)  # and the server
    stop = ["stop", "--time", str(GRACE_SECONDS), container.id]
    stopping = threading.Thread(target=container.podman, args=stop)
    stopping.start()
    *chunks, last, done = events
    assert done == b"data: [DONE]"
    assert json.loads(last.removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
    assert chunks
    stopping.join()
    state = container.state()
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)  # killed, it would have 137
    deadline = time.monotonic() + GRACE_SECONDS
    while processes_of(namespace, monitor) and time.monotonic() < deadline:
        time.sleep(0.1)  # podman's monitor of the container goes last
    assert processes_of(namespace, monitor) == []


def host_uid(process: Path, uid: int) -> int:
    """Which user a user of a container is on this machine, by the folder of one of its processes.

    Another one where podman runs without root.
    """
    for line in (process / "uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= uid < inside + count:
            return outside + uid - inside
    raise AssertionError(f"{process} has no user {uid}")


def processes_of(namespace: Path, monitor: int) -> list[Path]:
    """The folders in /proc of what runs in a container's namespace of pids, and of its monitor."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked, or is another user's
            name, _, fields = (process / "stat").read_text().rpartition(")")
            if fields.split()[0] == "Z":
                continue
            if int(process.name) == monitor:
                runs = name.endswith("(conmon")  # else another process has its number now
            else:
                runs = (process / "ns/pid").readlink() == namespace
            found += [process] if runs else []
    return found
