"""Creates and maintains the environments of this checkout, with the standard library alone.

Everything is inside the checkout:

    .venv/uv/, .venv/<flavour>/   uv, which installs all else; the environment of the patched SGLang
    .cache/upstream/, .cache/dist/, .cache/stock/   upstream's wheels, ours, SGLang to compare with
    .cache/models/, .cache/drafts/   published models, converted; draft models for tests
    .cache/uv/, .cache/pip/, .cache/numba-installed/   what was downloaded, what numba compiled
    .cache/home/, .cache/tmp/<pid>/   HOME and TMPDIR of child processes
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import _supervise
from _checkout import ROOT
from patches_tool.upstream import PATCHES, release_dir
from sglang_lz.startup.errors import DistError

FLAVOURS = ("cpu", "cuda")
CACHE = ROOT / ".cache"
FULL = CACHE / "full"
"""The commit at which `scripts/test full` passed last; scripts/release signs no other."""
SCRIPTS = ROOT / "scripts"
CPU = ROOT / "python" / "sglang_lz" / "cpu"
CPU_REQUIREMENTS = CPU / "requirements.txt"
UV = ROOT / ".venv" / "uv"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TEST_TOOLS, TEST_LOCK = SCRIPTS / "requirements-test.txt", SCRIPTS / "test.lock"
COMPILER = "ziglang==0.17.1"
"""A C++ compiler: SGLang compiles its n-gram drafts when a server starts."""

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket. The server's processes talk through such, named like SOCKET."""
SOCKET = "/tmpabcdefgh"
COMPILED = ("lz_penalty", "proper_tokens")
"""Our packages that hold what numba compiles, and the constants in it."""
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""uv's environment variables for settings of pip, which uv does not read."""


class SetupError(DistError):
    """Set-up cannot continue; the message is one sentence for the user."""


def detect_flavour(
    environ: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")
) -> str:
    """Return SGLANG_LZ_FLAVOUR if set, else "cuda" on a machine with an NVIDIA GPU, else "cpu".

    Raises SetupError if SGLANG_LZ_FLAVOUR is not a flavour. `driver` has an entry for each GPU
    while NVIDIA's driver is loaded.
    """
    if wanted := environ.get("SGLANG_LZ_FLAVOUR"):
        if wanted not in FLAVOURS:
            raise SetupError(f"SGLANG_LZ_FLAVOUR is {wanted!r}; it must be cpu or cuda.")
        return wanted
    if driver.is_dir() and any(driver.iterdir()):
        return "cuda"
    smi = shutil.which("nvidia-smi", path=environ.get("PATH", ""))  # WSL has no /proc/driver/nvidia
    if smi and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0:
        return "cuda"
    return "cpu"


@dataclass(frozen=True)
class Step:
    """One set-up step, which is repeated whenever its inputs have changed."""

    title: str  # for the user
    stamp: Path  # a file with the `made_from` of the last completed run
    made_from: str  # a digest of the inputs
    action: Callable[[], None]  # can be repeated after an interruption at any point
    made: Path = ROOT  # a file without which the step is not done
    suffices: str = ""  # the prefix of `made_from` that must be unchanged; all of it if empty

    def is_done(self) -> bool:
        """Whether the step was completed with the current inputs."""
        made_from = self.stamp.read_text() if self.stamp.exists() else ""
        is_enough = bool(self.suffices) and made_from.startswith(self.suffices)
        return (made_from == self.made_from or is_enough) and self.made.exists()

    def do(self) -> None:
        """Do the step. The stamp is deleted before it and created by a rename afterwards."""
        self.stamp.unlink(missing_ok=True)
        self.action()
        self.stamp.parent.mkdir(parents=True, exist_ok=True)
        new = self.stamp.with_suffix(".new")
        new.write_text(self.made_from)
        new.replace(self.stamp)


def do_steps(steps: list[Step]) -> None:
    """Do the outstanding steps in order, in one process of this checkout at a time."""
    if all(step.is_done() for step in steps):
        return
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up in this checkout to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        for step in steps:
            if not step.is_done():  # an earlier step may have undone it
                say(step.title)
                began = time.monotonic()
                step.do()
                say(f"done in {time.monotonic() - began:.0f} s")


def digest(root: Path, files: Iterable[Path], *words: str) -> str:
    """A digest of words, of the paths of files relative to `root`, and of their contents."""
    state = hashlib.sha256("\0".join(words).encode())
    for file in files:
        data = file.read_bytes()
        state.update(f"\0{file.relative_to(root).as_posix()}\0{len(data)}\0".encode())
        state.update(data)
    return state.hexdigest()


def files_below(*folders: Path) -> list[Path]:
    """All files in some folders, in a fixed order, except those that Python itself generates."""
    found = (file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file())
    return [file for file in found if "__pycache__" not in file.parts]


def sources_of_compiled(site: Path) -> list[Path]:
    """The modules of our packages in a folder from which numba compiles, in a fixed order."""
    return sorted(file for name in COMPILED for file in (site / name).rglob("*.py"))


def date_by_contents(site: Path) -> None:
    """Give the modules from which numba compiles a time that stands for the contents of them all.

    Numba compiles again, which takes minutes, what comes from a file of another time, and does not
    look at the modules whose constants it has compiled in.
    """
    sources = sources_of_compiled(site)
    seconds = int(digest(site, sources)[:8], 16) >> 1
    for source in sources:
        os.utime(source, (seconds, seconds))


def uv_settings(listed: str) -> dict[str, str]:
    """Environment variables that give uv the settings of pip, from `pip config list`."""
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: the best file of all indexes
    for section in ("global.", "install.", ":env:."):  # the later one wins, as in pip
        for line in listed.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(section) and (name := UV_NAMES.get(key.removeprefix(section))):
                separator = "," if name == "UV_FIND_LINKS" else " "
                found[name] = separator.join(ast.literal_eval(value).split())
    return found


def uv_step() -> Step:
    """Install uv, by its hash and with pip."""

    def install() -> None:
        shutil.rmtree(UV, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(UV)], "Python's venv module does not work")
        pip = [str(UV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        run([*pip, "--requirement", str(SCRIPTS / "uv.lock")], "pip could not install uv")

    inputs = made_from(UV, [SCRIPTS / "uv.lock"])
    return Step("installing uv", UV / "stamp", inputs, install, UV / "bin" / "uv")


def environment_step(folder: Path, what: str, files: list[Path], *packages: str) -> Step:
    """Make an environment in place of what is there, with `packages`, arguments of `install`.

    It depends on `files`; `what` tells the user what is installed.
    """

    def make() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        venv = [str(UV / "bin" / "uv"), "venv", "--quiet", "--seed", f"--python={sys.executable}"]
        run([*venv, str(folder)], f"uv could not make {folder}", **uv_variables())
        install(folder, *packages)

    title = f"installing {what} into {folder.relative_to(ROOT)}"
    stamp = folder / "stamps" / "environment"
    return Step(title, stamp, made_from(folder, files), make, folder / "bin" / "python")


def uv_variables() -> dict[str, str]:
    """Environment variables for uv, with the settings of pip."""
    pip = [str(UV / "bin" / "python"), "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, stdout=subprocess.PIPE, text=True, check=True).stdout
    return uv_settings(listed) | own_variables()


def install(folder: Path, *arguments: str) -> None:
    """Install packages into an environment; arguments as those of `uv pip install`."""
    command = [str(UV / "bin" / "uv"), "pip", "install", "--quiet"]
    env = uv_variables()
    if "--require-hashes" in arguments:  # uv then refuses constraints without hashes
        env["UV_CONSTRAINT"] = ""
    failure = "uv could not install what is needed"
    run([*command, f"--python={folder}/bin/python", *arguments], failure, **env)


def run(command: list[str], failure: str, **more: str) -> None:
    """Run a command of the set-up, with `more` environment variables; SetupError if it fails."""
    if _supervise.run(command, env=own_variables() | more, cwd=ROOT):
        raise SetupError(f"{failure}, see the lines above; run this again to go on from here.")


def made_from(folder: Path, files: Iterable[Path], *words: str) -> str:
    """A digest of files, of the Python, and of the location, on which environments depend."""
    return digest(ROOT, files, VERSION, str(folder), *words)


def own_variables() -> dict[str, str]:
    """Ours without what leads a child to another environment, and with caches in the checkout."""
    unwanted = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    folders = {"PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv", "UV_TOOL_DIR": "uv-tools"}
    caches = {name: str(CACHE / folder) for name, folder in folders.items()}
    always = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    return caches | env | always | {"TMPDIR": str(temporary())}


def pip_settings() -> dict[str, str]:
    """The user's own settings of pip, for a child with another HOME: a server fetches models."""
    home = Path.home()
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = (folder / "pip" / "pip.conf", home / ".pip" / "pip.conf")
    found = next((file for file in files if file.is_file()), None)
    return {"PIP_CONFIG_FILE": str(found)} if found else {}


def temporary() -> Path:
    """The TMPDIR for this process's children."""
    return CACHE / "tmp" / str(os.getpid())


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make `temporary()` and remove it afterwards, as those of dead processes.

    Raises:
        SetupError: its path is too long for the sockets that the server creates in it.
    """
    folder = temporary()
    longest = len(os.fsencode(f"{folder}{SOCKET}"))
    if longest > SOCKET_PATH_BYTES:
        raise SetupError(
            f"the path of this checkout is {longest - SOCKET_PATH_BYTES} bytes too long for "
            f"the Unix sockets in {folder}; move the checkout to a shorter path."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        if other == folder or not Path("/proc", other.name).exists():
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Environment:
    """The environment of one flavour: sets it up and runs programs in it."""

    def __init__(self, flavour: str) -> None:
        self.flavour = flavour
        self.folder = ROOT / ".venv" / flavour
        self.stock = CACHE / "stock"
        self.python = self.folder / "bin" / "python"
        self._stamps = self.folder / "stamps"
        self._patches = release_dir(PATCHES)
        # Upstream's own requirements, of the CUDA flavour, are not locked.
        self._locked = ["--constraints", str(TEST_LOCK)] if flavour == "cpu" else []

    def set_up(self, *, tests: bool = False, package_of_checkout: bool = False) -> None:
        """Create everything that is missing or older than the checkout; SetupError if it fails.

        Args:
            tests: also install the tools for the tests, and build SGLang without the LZ patches.
            package_of_checkout: a wheel with other versions of our packages is sufficient.
        """
        # The wheel's content outside our packages: the patched SGLang and `sgl_kernel`.
        patched = made_from(self.folder, files_below(self._patches, CPU))
        package = made_from(self.folder, files_below(ROOT / "python", SCRIPTS / "patches_tool"))
        steps = [
            uv_step(),
            environment_step(
                self.folder,
                "what SGLang needs",
                [self._patches / "upstream.lock", CPU_REQUIREMENTS, TEST_LOCK],
                *(["--requirement", str(CPU_REQUIREMENTS)] if self.flavour == "cpu" else ["pip"]),
                *self._locked,
            ),
            Step(
                f"building the patched SGLang, {self.flavour} flavour, and installing it",
                self._stamps / "package",
                f"{patched} {package}",
                self._install_package,
                suffices=patched if package_of_checkout else "",
            ),
            *(self._test_steps() if tests else []),
        ]
        with temporary_folder():
            do_steps(steps)

    def _test_steps(self) -> list[Step]:
        tools = Step(
            "installing the tools of the tests",
            self._stamps / "tools",
            made_from(self.folder, [TEST_TOOLS, TEST_LOCK]),
            lambda: install(self.folder, "--requirement", str(TEST_TOOLS), *self._locked),
        )
        compiler = Step(
            "installing a C++ compiler, because there is none",
            self._stamps / "compiler",
            made_from(self.folder, [], COMPILER),
            self._install_compiler,
        )
        of_stock = [self._patches / "upstream.lock", *files_below(self._patches / "cpu", CPU)]
        stock = Step(
            "building SGLang without the LZ patches, to compare with",
            self._stamps / "stock",
            made_from(self.folder, of_stock),
            self._install_stock,
            self.stock,
        )
        # SGLang takes the user's CXX, or `c++`.
        has_compiler = "CXX" in os.environ or shutil.which("c++")
        return [tools, *([] if has_compiler else [compiler]), stock]

    def _install_package(self) -> None:
        wheel = self._build("dist")
        options = ["--no-deps"] if self.flavour == "cpu" else []
        # uv's cache would keep every wheel of ours.
        install(self.folder, "--no-cache", "--reinstall-package=sglang", *options, wheel)
        date_by_contents(self.folder / "lib" / f"python{VERSION}" / "site-packages")

    def _install_stock(self) -> None:
        shutil.rmtree(self.stock, ignore_errors=True)
        wheel = self._build("stock-dist", "--groups", "cpu")
        install(self.folder, "--no-cache", "--no-deps", f"--target={self.stock}", wheel)

    def _install_compiler(self) -> None:
        install(self.folder, COMPILER)
        wrapper, cache = self.folder / "bin" / "c++", self.folder / "zig"
        # nodelete: libraries built by g++ are never unloaded, and a thread of SGLang's relies on
        # that.
        wrapper.write_text(
            "#!/bin/sh\n"
            f"export ZIG_GLOBAL_CACHE_DIR='{cache}'\n"
            f"exec '{self.python}' -m ziglang c++ -Wl,-z,nodelete \"$@\"\n"
        )
        wrapper.chmod(0o755)
        # It builds its standard library on first use, which takes minutes and must not happen in a
        # server.
        cache.mkdir(exist_ok=True)
        nothing = ["-shared", "-xc++", os.devnull, "-o", str(cache / "nothing.so")]
        run([str(wrapper), *nothing], "the compiler does not compile")

    def _build(self, folder: str, *options: str) -> str:
        out = CACHE / folder
        shutil.rmtree(out, ignore_errors=True)
        command = [str(UV / "bin" / "python"), "-B", str(SCRIPTS / "_patches.py"), "build"]
        command += ["--out", str(out), "--flavour", self.flavour, *options]
        run(command, "the patched wheel could not be built")
        (wheel,) = out.glob("*.whl")
        return str(wheel)

    def variables(self) -> dict[str, str]:
        """Environment variables for a child process; the user's HF_HOME may be shared."""
        home = CACHE / "home"
        home.mkdir(parents=True, exist_ok=True)
        env = pip_settings() | own_variables()
        return {name: value for name, value in env.items() if not name.startswith("XDG_")} | {
            "PATH": os.pathsep.join([str(self.python.parent), env.get("PATH", os.defpath)]),
            "HOME": str(home),
            "NUMBA_CACHE_DIR": str(CACHE / "numba-installed"),
        }


def say(text: str) -> None:
    """Print a message to standard error without buffering."""
    print(f"sglang-lz: {text}", file=sys.stderr, flush=True)


def main(program: Callable[[list[str]], int]) -> None:
    """Run a script's `program` with its arguments; exit with a status and never a traceback."""
    status = 1
    try:
        status = program(sys.argv[1:])
    except DistError as error:
        say(str(error))
    except _supervise.Ended as ended:
        say(f"ended by {ended}")
        status = ended.status
    except KeyboardInterrupt:
        status = 130
    except OSError as error:
        say(f"{error.filename or 'the system'}: {error.strerror}.")
    sys.exit(status)
