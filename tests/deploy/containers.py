"""podman with a storage of its own, and what it builds images from where there is no registry."""

from __future__ import annotations

import ast
import configparser
import json
import os
import subprocess
import sys
import tarfile
from importlib.metadata import distribution, distributions
from pathlib import Path
from resource import RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit
from typing import Any

from _tools import ROOT, find

CONTAINERS = ROOT / ".cache" / "containers"
PYTHON_OF_BASE = (3, 11)
"""Of Debian bookworm, which stands in for the image of slim Python that Docker Hub has."""
MOST_FILES_AND_PROCESSES = 20000
"""podman's own limits are far higher, and setting those takes rights that we may not have."""


class Podman:
    """podman with its storage and configuration in a folder of its own, empty at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        downloads = folder.with_name("downloads")  # the cache mounts of builds are below it
        for each in (folder, downloads):
            each.mkdir(parents=True, exist_ok=True)
        storage = {"driver": "overlay", "graphroot": f"{folder}/graph", "runroot": f"{folder}/run"}
        storage |= {"rootless_storage_path": f"{folder}/graph"}  # of others than root
        # For a machine without systemd, without a firewall, and with limits.
        kinds = (("nofile", _most(RLIMIT_NOFILE)), ("nproc", _most(RLIMIT_NPROC)))
        limits = [f"{name}={most}:{most}" for name, most in kinds]
        engine = {"cgroup_manager": "cgroupfs", "events_logger": "file"}
        engine |= {"tmp_dir": f"{folder}/libpod"}
        engine |= {"runtime": "runc"} if find("runc") else {}
        self.env = os.environ | {
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": self._write("storage.conf", {"storage": storage}),
            "CONTAINERS_CONF": self._write(
                "containers.conf",
                {"containers": {"netns": "host", "default_ulimits": limits}, "engine": engine},
            ),
            "TMPDIR": str(downloads),
        }
        if os.geteuid():
            self.env["XDG_RUNTIME_DIR"] = f"{folder}/run"
        self.clear().wait()  # what an interrupted run left
        (folder / "run").mkdir(mode=0o700)

    def _write(self, name: str, sections: dict[str, dict[str, Any]]) -> str:
        lines = []
        for section, settings in sections.items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(v)}" for key, v in settings.items())]
        (self.folder / name).write_text("\n".join([*lines, ""]))
        return str(self.folder / name)

    def __call__(self, *arguments: str) -> str:
        """Run podman to success and return what it prints."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run podman; the caller looks at the status."""
        command = ["podman", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)

    def inspect(self, kind: str, name: str) -> dict[str, Any]:
        """Return what podman knows of an image or a container."""
        (found,) = json.loads(self(kind, "inspect", name))
        return found

    def clear(self) -> subprocess.Popen[bytes]:
        """End all containers and begin to remove everything that podman keeps."""
        if (self.folder / "graph").exists():
            self("rm", "--all", "--force", "--time", "0")
        command = ["rm", "-rf", *(str(self.folder / part) for part in ("graph", "run", "libpod"))]
        if os.geteuid():  # files of a container's users are not this user's to remove
            command = ["podman", "unshare", *command]
        return subprocess.Popen(command, env=self.env)

    def build(self, flavour: str, base: str, *options: str) -> str:
        """Build an image from the checkout with scripts/image and return its name."""
        tag = f"localhost/sglang-lz-test:{flavour}"
        command = [str(ROOT / "scripts" / "image"), flavour, "--base", base, "--tag", tag]
        command += options
        done = subprocess.run(command, env=self.env, stderr=subprocess.PIPE, text=True, check=False)
        sys.stderr.write(done.stderr)
        if "sealing memfd" in done.stderr:  # on some kernels runc fails to seal its own copy
            done = subprocess.run(command, env=self.env, check=False)
        done.check_returncode()
        return tag


def _most(kind: int) -> int:
    _, hard = getrlimit(kind)
    return MOST_FILES_AND_PROCESSES if hard < 0 else min(hard, MOST_FILES_AND_PROCESSES)


def add_torch(tree: Path) -> None:
    """Add our environment's torch to a tar of a Debian: an index may only have the CUDA build."""
    parts = [d for d in distributions() if d.name.startswith(("nvidia-", "cuda-"))]
    unneeded = ("torch/include/", "torch/test/", "torch/bin/test_")
    with tarfile.open(tree, "a") as archive:
        for part in [distribution("torch"), *parts]:
            for file in part.files or []:
                if file.parts[0] == ".." or str(file).startswith(unneeded) or file.suffix == ".pyc":
                    continue
                target = f"usr/local/lib/python3.11/dist-packages/{file}"
                archive.add(file.locate(), target, recursive=False, filter=_as_root)


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    return member


def pip_mounts(file: Path) -> list[str]:
    """Write pip's settings here, from files and variables, to a file, and return it as a mount.

    With it come the paths that they name, read-only but for pip's cache.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(line.partition("=")[::2] for line in listed.splitlines())
    settings: dict[str, str] = {}
    for scope in ("global.", ":env:."):  # variables win over files
        for name, value in found.items():
            if name.startswith(scope):
                settings[name.removeprefix(scope)] = str(ast.literal_eval(value))
    parser = configparser.RawConfigParser()
    parser["global"] = settings
    with file.open("w") as stream:
        parser.write(stream)
    if cache := settings.get("cache-dir"):
        Path(cache).mkdir(parents=True, exist_ok=True)
    mounts = [f"{file}:/etc/pip.conf:ro"]
    for name, value in settings.items():
        for word in value.split():
            path = Path(word.removeprefix("file://"))
            if not (path.is_absolute() and path.exists()):
                continue
            if word.startswith("file://") and path.is_dir():
                path = path.parent  # the files of an index lie beside its pages
            mounts.append(f"{path}:{path}:{'rw' if name == 'cache-dir' else 'ro'}")
    return list(dict.fromkeys(mounts))
