"""scripts/image: builds a container image with docker, podman or buildah."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import shutil
import subprocess

import _supervise
from _checkout import ROOT
from _environment import SetupError, main, say
from patches_tool.upstream import LOCK, Lock, release_dir

ENGINES = ("docker", "podman", "buildah")
PINNED = re.compile(r".+@sha256:[0-9a-f]{64}")

EXAMPLES = """\
examples:
  scripts/image cuda --base docker.io/lmsysorg/sglang:v0.5.23@sha256:DIGEST
  scripts/image cpu --engine podman -- --network host

The digest of upstream's image: docker buildx imagetools inspect lmsysorg/sglang:v0.5.23
"""


def find_engine(wanted: str | None = None) -> str:
    """Return the first engine (or `wanted`) that works, say why others do not; or SetupError."""
    passed_over: list[str] = []
    for engine in [wanted] if wanted else ENGINES:
        if shutil.which(engine) is None:
            continue
        info = subprocess.run([engine, "info"], capture_output=True, text=True, check=False)
        if info.returncode == 0:
            for reason in passed_over:
                say(f"{reason}; building with {engine} instead.")
            return engine
        complaint, *_ = [*info.stderr.split("\n"), f"exit status {info.returncode}"]
        passed_over.append(f"`{engine} info` fails ({complaint.removeprefix('ERROR: ')})")
    if passed_over:
        raise SetupError(f"{' and '.join(passed_over)}, so there is nothing to build with.")
    missing = f"{wanted} is not installed" if wanted else "no container engine is installed"
    raise SetupError(
        f"{missing}; install docker with its buildx plugin, podman or buildah (on Debian and "
        "Ubuntu: apt-get install podman)."
    )


def build_command(
    engine: str, which: str, tags: list[str], arguments: dict[str, str], options: list[str]
) -> list[str]:
    """Return the command that builds an image, with build arguments and the engine's options."""
    command = [engine, "build", "--file", f"docker/{which}.Dockerfile"]
    arguments = dict(arguments)
    if engine != "docker":
        command += ["--format", "docker"]  # the OCI format has no health checks
        # Newer versions refuse both options together; older ones know only --timestamp.
        if epoch := arguments.pop("SOURCE_DATE_EPOCH", None):
            command += ["--timestamp", epoch]
    command += [f"--tag={tag}" for tag in tags]
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    return [*command, *options, "."]


def version() -> str:
    """Return our version of the upstream release, for example ``0.5.23+lz1``."""
    lock = Lock.load(release_dir() / LOCK)
    return lock.local_version(lock.revision, "cuda")


def labels() -> dict[str, str]:
    """Return build arguments for the labels; the time is SOURCE_DATE_EPOCH or the commit's."""
    found = {"VERSION": version()}
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if commit := _git("log", "-1", "--format=%H %ct"):
        revision, committed = commit.split()
        found["REVISION"] = revision + ("-dirty" if _git("status", "--porcelain") else "")
        epoch = epoch or committed
    if epoch:
        if not epoch.isdecimal():
            raise SetupError(f"SOURCE_DATE_EPOCH is {epoch!r}; it must be seconds since 1970.")
        created = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
        found |= {"SOURCE_DATE_EPOCH": epoch, "CREATED": f"{created:%Y-%m-%dT%H:%M:%SZ}"}
    return found


def _git(*arguments: str) -> str:
    if shutil.which("git") is None:
        return ""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def run_command(engine: str, which: str, tag: str) -> list[str]:
    """Return a command that runs the image; for buildah's images, it uses podman."""
    engine = "podman" if engine == "buildah" else engine
    # By default, engines kill a container after 10 s, but its running requests may take longer.
    command = [engine, "run", "--rm", "--init", "--stop-timeout", "300"]
    command += ["--publish", "127.0.0.1:30000:30000"]
    if which == "cpu":
        return [*command, tag]
    if which == "router":
        listen = ("--host=0.0.0.0", "--port=30000")
        return [*command, tag, *listen, "--worker-urls", "http://SERVER:30000"]
    gpus = ["--gpus", "all"] if engine == "docker" else ["--device", "nvidia.com/gpu=all"]
    command += [*gpus, "--ipc", "host", "--ulimit", "memlock=-1", "--volume", "sglang-lz:/cache"]
    # Arguments replace the image's own, which end loops.
    return [*command, tag, "--end-loops", "--model-path", "Qwen/Qwen2.5-7B-Instruct"]


def image(arguments: list[str]) -> int:
    """Run the script; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/image",
        description="Build a container image of the patched SGLang from this checkout.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s cpu|cuda|router [option ...] [-- option of the engine's build ...]",
    )
    add = parser.add_argument
    add("which", choices=("cpu", "cuda", "router"))
    add("--engine", choices=ENGINES, help="default: the first of them that works")
    pinned = "default: what the Dockerfile pins (cuda: none)"
    add("--base", metavar="NAME@sha256:DIGEST", help=pinned)
    add("--tag", metavar="NAME", help="default: sglang-lz:cpu (:cuda, :router), and the version's")
    add("--print", action="store_true", help="show the command, build nothing")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = parser.parse_args(arguments[:split])
    which = chosen.which
    if which == "cuda" and not PINNED.fullmatch(chosen.base or ""):
        raise SetupError(
            "the CUDA image's base, upstream's image, must be pinned with --base; scripts/image -h "
            "says how to find its digest."
        )
    engine = find_engine(chosen.engine)
    versioned = f"sglang-lz:{version().replace('+', '-')}-{which}"
    tags = [chosen.tag] if chosen.tag else [f"sglang-lz:{which}", versioned]
    build_arguments = labels() | ({"BASE_IMAGE": chosen.base} if chosen.base else {})
    command = build_command(engine, which, tags, build_arguments, arguments[split + 1 :])
    if chosen.print:
        print(shlex.join(command))
        return 0
    say(shlex.join(command))
    env = os.environ | {"DOCKER_BUILDKIT": "1"}
    env.pop("SOURCE_DATE_EPOCH", None)  # it is passed in the command, in the engine's own way
    if _supervise.run(command, env=env, cwd=ROOT):
        hint = " docker 23 and newer need the buildx plugin." if engine == "docker" else ""
        raise SetupError(f"{engine} could not build the image, see the lines above.{hint}")
    listed = [engine, "images", "--format", "{{.Size}}", tags[0]]
    size = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.strip()
    say(f"built {' and '.join(tags)}, {size}; to run it:")
    print(shlex.join(run_command(engine, which, tags[0])))
    return 0


if __name__ == "__main__":
    main(image)
