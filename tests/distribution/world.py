"""A small upstream with its wheel and five patches, made without the code under test.

The tools run in processes of their own, from a checkout with a copy of them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "python"
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
TAGS = f"{PYTHON}-{PYTHON}-manylinux_2_34_{platform.machine()}"
WHEEL = f"sglang-0.5.23-{TAGS}.whl"

SAMPLER = "".join(f"line_{n} = {n}\n" for n in range(40))
SERVER = "from steps import check, lz, step\r\n\r\n\r\ndef start():\r\n" + "".join(
    f"    step({n})\r\n" for n in range(12)
)
KERNEL = "import sgl_kernel\n\n\ndef run():\n    return sgl_kernel.run()\n"
FIELDS = "class Request:\n    temperature = 1.0\n    top_p = 1.0\n"
VERSION = """\
version: str
__version_tuple__: tuple[int | str, ...]

__version__ = version = '0.5.23'
__version_tuple__ = version_tuple = (0, 5, 23)
"""
METADATA = """\
Metadata-Version: 2.4
Name: sglang
Version: 0.5.23
License:  Apache License
                           Version 2.0, January 2004
\x20
           Version: of the licence, not of the package
License-File: LICENSE
Requires-Dist: torch==2.14.1
Requires-Dist: sglang-kernel==0.4.10
Provides-Extra: test
Requires-Dist: pytest; extra == "test"

# A description

Version: 9.9.9
Requires-Dist: nothing
"""
INFO = "sglang-0.5.23.dist-info"
UPSTREAM = {
    "sglang/__init__.py": "from sglang._version import __version__\n",
    "sglang/_version.py": VERSION,
    "sglang/sampler.py": SAMPLER,
    "sglang/server.py": SERVER,
    "sglang/fields.py": FIELDS,
    "sglang/kernel.py": KERNEL,
    "sglang/srt/server_args.py": "class ServerArgs:\n    model_path: str\n",
    "sglang/srt/speculative/spec_info.py": "class SpeculativeAlgorithm:\n    NGRAM = 1\n",
    "sglang/configs/E=8,N=16.json": "{}\n",
    "sglang/run.sh": "#!/bin/sh\n",
    f"{INFO}/METADATA": METADATA,
    f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {TAGS}\n",
    f"{INFO}/entry_points.txt": "[console_scripts]\nsglang = sglang.cli:main\n",
    f"{INFO}/top_level.txt": "sglang\n",
    f"{INFO}/licenses/LICENSE": "Apache License\n",
}
CALL = "from sglang_lz import hook\nhook()\n"
EDITS = {
    "sampling/call.patch": {"sampler.py": ("line_9 = 9\n", f"line_9 = 9\n{CALL}")},
    "sampling/call-again.patch": {
        "sampler.py": ("line_30 = 30\n", f"line_30 = 30\n{CALL}"),
        "server.py": ("    step(5)\r\n", "    step(5)\r\n    lz()\r\n"),
    },
    "requests/field.patch": {"fields.py": ("    top_p = 1.0\n", "    top_p = 1.0\n    lz = 0.0\n")},
    "server/check.patch": {"server.py": ("    step(1)\r\n", "    step(1)\r\n    check()\r\n")},
    "cpu/stand-in.patch": {"kernel.py": ("import sgl_kernel\n", "import sgl_kernel  # ours\n")},
}
MESSAGE = """\
Call the hook of {name}

Why: because this is
 the test of it
Upstream: not for upstream
Remove-when: the test goes
"""
FORMAT = "--keep-subject --no-stat --zero-commit --full-index --no-signature"


def patched(names: list[str]) -> dict[str, str]:
    """Return upstream's files with the edits of some patches."""
    files = {path: text for path, text in UPSTREAM.items() if path.startswith("sglang/")}
    for name in names:
        for path, (before, after) in EDITS[name].items():
            assert files[f"sglang/{path}"].count(before) == 1
            files[f"sglang/{path}"] = files[f"sglang/{path}"].replace(before, after)
    return files


def git(folder: Path, *args: str, stdin: str = "") -> str:
    """Run git with a fixed identity and no configuration."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        env[f"GIT_{who}_NAME"] = "sglang-lz maintainers"
        env[f"GIT_{who}_EMAIL"] = "maintainers@sglang-lz.invalid"
        env[f"GIT_{who}_DATE"] = "2025-11-20T00:00:00+0000"
    command = ["git", "-C", str(folder), *args]
    done = subprocess.run(command, env=env, input=stdin.encode(), capture_output=True, check=True)
    return done.stdout.decode()


def put(folder: Path, files: dict[str, str]) -> None:
    """Write files below a folder, by their paths."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())


def record_hash(data: bytes) -> str:
    """Return a file's hash as RECORD writes it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def write_upstream_wheel(path: Path, files: dict[str, str]) -> None:
    """Write a wheel as upstream's build does: with folders, real times and a mode of 0o664."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("sglang/", (2026, 1, 2, 3, 4, 6)), "")
        rows = []
        info_name = next(name.split("/")[0] for name in files if ".dist-info" in name)
        for name, text in files.items():
            info = zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6))
            info.external_attr = (0o100755 if name.endswith(".sh") else 0o100664) << 16
            archive.writestr(info, text.encode())
            quoted = f'"{name}"' if "," in name else name
            rows.append(f"{quoted},{record_hash(text.encode())},{len(text.encode())}\n")
        archive.writestr(f"{info_name}/RECORD", "".join(rows) + f"{info_name}/RECORD,,\n")


def write_lock(path: Path, wheel: Path, python: str = PYTHON, version: str = "0.5.23") -> None:
    """Pin one wheel."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    path.write_text(
        f'name = "sglang"\nversion = "{version}"\nrevision = 1\n\n[[wheel]]\n'
        f'python = "{python}"\narch = "{platform.machine()}"\n'
        f'filename = "{wheel.name}"\nsha256 = "{digest}"\n'
    )


def at_call(owner: str, name: str, calls: int, code: str) -> str:
    """Return Python text that runs code in the given call of a function."""
    return (
        f"import os, signal, zipfile\nreal, seen = {owner}.{name}, []\n"
        f"def fake(*args, **kwargs):\n    seen.append(1)\n    if len(seen) == {calls}: {code}\n"
        f"    return real(*args, **kwargs)\n{owner}.{name} = fake\n"
    )


Change = Callable[[Path], object]
"""Damages the files below a folder."""


def remove(path: str) -> Change:
    return lambda root: (root / path).unlink()


def append(path: str, text: str = "\n") -> Change:
    return lambda root: (root / path).write_bytes((root / path).read_bytes() + text.encode())


def replace(path: str, before: str, after: str) -> Change:
    def change(root: Path) -> None:
        (target,) = root.glob(path)
        assert before in target.read_text()
        target.write_text(target.read_text().replace(before, after))

    return change


def snapshot(folder: Path, *, caches: bool = False) -> dict[str, bytes]:
    """Return every file below a folder, but for what git keeps and, unless asked for, caches."""
    hidden = {".git"} if caches else {".git", "__pycache__"}
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not hidden & set(file.parts)
    }


def sentence_of(
    done: subprocess.CompletedProcess[str], status: int, root: Path, before: dict[str, bytes]
) -> str:
    """Return the last sentence of a process that has failed and changed no file."""
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert snapshot(root) == before
    assert not list(root.rglob(".sglang-lz-*"))
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("sglang-lz: ")
    return sentence


@dataclass
class World:
    """A checkout of ours at ``root``/checkout, upstream's wheel in ``root``/wheels."""

    root: Path

    def __post_init__(self) -> None:
        self.env: dict[str, str] = {}
        self.checkout = self.root / "checkout"
        self.patches = self.checkout / "patches" / "0.5.23"
        self.cache = self.checkout / ".cache" / "upstream"
        self.packages = self.checkout / "python"
        self.package = self.packages / "sglang_lz"
        self.wheel = self.root / "wheels" / WHEEL

    def hook(self, code: str) -> None:
        """Run code in every later process of the tools before anything else."""
        (self.root / "hook").mkdir()
        (self.root / "hook" / "sitecustomize.py").write_text(code)
        self.env["PYTHONPATH"] = f"{self.root / 'hook'}:{self.packages}"

    def run(
        self, *args: object, path: Path | None = None, cwd: Path | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run sglang-lz of the checkout, or of the site-packages ``path``, or scripts/patches."""
        env = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheel.parent)}
        env |= {"PYTHONPATH": str(path or self.packages), "PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"PIP_CONFIG_FILE": os.devnull}
        is_ours = args[0] in ("doctor", "verify")
        program = ["-m", "sglang_lz"] if is_ours else [self.checkout / "scripts" / "_patches.py"]
        command = [sys.executable, *program, *map(str, args)]
        options |= {"env": env | self.env, "cwd": cwd or self.root, "text": True}
        return subprocess.run(command, capture_output=True, check=False, **options)

    def ok(self, *args: object, **options: object) -> str:
        """Run and return the standard output; the status must be 0."""
        done = self.run(*args, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def fails(self, *args: object, **options: object) -> str:
        """Run what must fail and change no file; return the one sentence that it says."""
        before = snapshot(self.root)
        sentence = sentence_of(self.run(*args, **options), 2, self.root, before)
        assert sentence.endswith(".")
        return sentence

    def build(self, *args: object) -> Path:
        """Build from the wheel and return the result."""
        return Path(self.root, self.ok("build", "--wheel", self.wheel, *args).strip())

    def site(self, wheel: Path | None = None, name: str = "site") -> Path:
        """Install a wheel (by default upstream's, which the template has done) into a folder."""
        target = self.root / name
        if wheel is None:
            return (self.root / "installed").rename(target)
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
        command += ["--no-compile", "--disable-pip-version-check", "--target", str(target)]
        subprocess.run([*command, str(wheel)], check=True, capture_output=True)
        return target

    def upstream_checkout(self) -> Path:
        """Make a git checkout of upstream's repository and return it."""
        tree = self.root / "upstream"
        put(tree / "python", {k: v for k, v in patched([]).items() if "_version" not in k})
        git(tree, "init", "-q")
        git(tree, "add", "-A")
        git(tree, "commit", "-qm", "Upstream")
        return tree
