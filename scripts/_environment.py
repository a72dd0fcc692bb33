"""Creates and maintains the virtual environment in which the patched SGLang runs.

This uses only the standard library, because it runs before anything is installed. Everything is
inside the checkout:

    .venv/<flavour>/         the environment
    .venv/clients/           clients of other projects, which the tests serve
    .venv/<flavour>/stamps/  one file for each set-up step, written when the step is done
    .cache/upstream/         upstream's wheels, downloaded and verified
    .cache/dist/             our wheels
    .cache/stock/            SGLang without the LZ patches, for comparison in tests
    .cache/drafts/           draft models for tests, by what they are made from
    .cache/pip/              pip's cache
    .cache/home/             HOME of child processes, so that no library writes to the user's home
    .cache/tmp/<pid>/        TMPDIR of child processes
"""

from __future__ import annotations

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
from typing import Literal

import _supervise
from _checkout import ROOT
from sglang_lz.distribution import sources
from sglang_lz.distribution.errors import DistError

Flavour = Literal["cpu", "cuda"]
FLAVOURS: tuple[Flavour, ...] = ("cpu", "cuda")

CACHE = ROOT / ".cache"
FULL = CACHE / "full"
"""The commit at which `scripts/test full` passed last; scripts/release signs no other."""
PATCHES = ROOT / "patches"
CPU = ROOT / "python" / "sglang_lz" / "cpu"
TEST_REQUIREMENTS = ROOT / "scripts" / "requirements-test.txt"
COMPILER = ROOT / "scripts" / "requirements-compiler.txt"
CLIENTS = ROOT / ".venv" / "clients"
"""The environment of clients of other projects, whose requirements contradict SGLang's."""
CLIENTS_LOCK = ROOT / "scripts" / "clients.lock"

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket. The server's processes talk through such, named like SOCKET."""
SOCKET = "/tmpabcdefgh"
COMPILED_ROOMS = (".", "fields", "penalty", "penalty/kernels", "loops", "bounds", "proper")
"""The folders of our package that hold what numba compiles, and the constants in it."""
NOT_COMPILED = "/sglang/(multimodal_gen|test)/"
"""Modules of SGLang that serving text never imports, a third of it."""


class SetupError(DistError):
    """Set-up cannot continue; the message is one sentence for the user."""


def detect_flavour(
    environ: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")
) -> Flavour:
    """Return SGLANG_LZ_FLAVOUR if set, else "cuda" on a machine with an NVIDIA GPU, else "cpu".

    Args:
        environ: the environment variables.
        driver: the folder that has an entry for each GPU while NVIDIA's driver is loaded.

    Raises:
        SetupError: SGLANG_LZ_FLAVOUR is not a flavour.
    """
    if wanted := environ.get("SGLANG_LZ_FLAVOUR"):
        return parse_flavour(wanted, "SGLANG_LZ_FLAVOUR")
    if driver.is_dir() and any(driver.iterdir()):
        return "cuda"
    smi = shutil.which("nvidia-smi", path=environ.get("PATH", ""))  # WSL has no /proc/driver/nvidia
    if smi and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0:
        return "cuda"
    return "cpu"


def parse_flavour(text: str, name: str) -> Flavour:
    """Return `text` as a flavour; otherwise raise a SetupError that names the option `name`."""
    for flavour in FLAVOURS:
        if text == flavour:
            return flavour
    raise SetupError(f"{name} is {text!r}; it must be cpu or cuda.")


def split_option(name: str, arguments: list[str]) -> tuple[str | None, list[str]]:
    """Remove an option with a value from the arguments; if it is repeated, the last one counts.

    Returns:
        its value, or None if it is not given, and the other arguments in order.
    """
    value, rest = None, []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == name:
            value = next(remaining, "")
        elif argument.startswith(f"{name}="):
            value = argument.removeprefix(f"{name}=")
        else:
            rest.append(argument)
    return value, rest


def has_compiler(environ: Mapping[str, str]) -> bool:
    """Whether SGLang finds a C++ compiler: the user's CXX, which is not checked, or `c++`."""
    return "CXX" in environ or shutil.which("c++", path=environ.get("PATH", "")) is not None


@dataclass(frozen=True)
class Step:
    """One set-up step, which is repeated whenever its inputs have changed.

    Attributes:
        title: the text shown to the user while the step runs.
        stamp: the file that stores the `made_from` of the last completed run.
        made_from: a digest of the inputs.
        action: does the step; it can be repeated after an interruption at any point.
        suffices: the prefix of `made_from` that must be unchanged; all of it if empty.
    """

    title: str
    stamp: Path
    made_from: str
    action: Callable[[], None]
    suffices: str = ""

    def is_done(self) -> bool:
        """Whether the step was completed with the current inputs."""
        try:
            made_from = self.stamp.read_text()
        except OSError:
            return False
        return made_from == self.made_from or bool(
            self.suffices and made_from.startswith(self.suffices)
        )

    def do(self) -> None:
        """Do the step. The stamp is deleted before it and created by a rename afterwards."""
        self.stamp.unlink(missing_ok=True)
        self.action()
        self.stamp.parent.mkdir(parents=True, exist_ok=True)
        new = self.stamp.with_suffix(".new")
        new.write_text(self.made_from)
        new.replace(self.stamp)


def do_steps(steps: list[Step], lock: Path) -> None:
    """Do the outstanding steps in order, in one process at a time (`lock` is a file)."""
    if all(step.is_done() for step in steps):
        return
    with _locked(lock):
        number = 0
        while todo := [step for step in steps if not step.is_done()]:  # a step may undo later ones
            step, number = todo[0], number + 1
            say(f"[{number}/{number - 1 + len(todo)}] {step.title}")
            began = time.monotonic()
            step.do()
            say(f"[{number}/{number - 1 + len(todo)}] done in {time.monotonic() - began:.0f} s")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up in this checkout to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


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


def sources_of_compiled(package: Path) -> list[Path]:
    """The modules of our package from which numba compiles, in a fixed order."""
    return sorted(file for room in COMPILED_ROOMS for file in (package / room).glob("*.py"))


def date_by_contents(package: Path) -> None:
    """Give the modules from which numba compiles a time that stands for the contents of them all.

    Numba compiles again, which takes minutes, what comes from a file of another time, and does not
    look at the modules whose constants it has compiled in.
    """
    sources = sources_of_compiled(package)
    seconds = int(digest(package, sources)[:8], 16) >> 1
    for source in sources:
        os.utime(source, (seconds, seconds))


class Environment:
    """The environment of one flavour: sets it up and runs programs in it."""

    def __init__(self, flavour: Flavour) -> None:
        self.flavour = flavour
        self.release = sources.release(PATCHES)
        self.folder = ROOT / ".venv" / flavour
        self.stock = CACHE / "stock"
        self._patches = PATCHES / self.release
        self._lock = self._patches / "upstream.lock"
        self.python = self.folder / "bin" / "python"
        self._stamps = self.folder / "stamps"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = self.folder / "lib" / f"python{version}" / "site-packages"
        self._version = version

    def set_up(
        self, *, tests: bool = False, clients: bool = False, package_of_checkout: bool = False
    ) -> None:
        """Create everything that is missing or older than the checkout.

        Args:
            tests: also install the tools for the tests, and build SGLang without the LZ patches.
            clients: also install the clients of `CLIENTS`.
            package_of_checkout: `sglang_lz` will be imported from the checkout, so a wheel with a
                different version of it is sufficient.

        Raises:
            SetupError: a step failed; the completed steps are kept for the next time.
        """
        if not self.python.exists():  # never created, or its base Python is gone
            shutil.rmtree(self._stamps, ignore_errors=True)
        with self.temporary_folder():
            steps = self._steps(package_of_checkout=package_of_checkout)
            steps += self._test_steps() if tests else []
            steps += [self._clients_step()] if clients else []
            do_steps(steps, CACHE / "setup.lock")

    def _steps(self, *, package_of_checkout: bool = False) -> list[Step]:
        # The wheel's content outside our package: the patched SGLang and `sgl_kernel`.
        patched = self._digest(files_below(self._patches, CPU))
        package = self._digest(files_below(ROOT / "python"))
        own = [CPU / "requirements.txt"] if self.flavour == "cpu" else []
        dependencies = Step(
            "installing what SGLang needs (the longest step: gigabytes)",
            self._stamps / "dependencies",
            self._digest([self._lock, *own]),
            self._install_dependencies,
        )
        return [
            Step(
                f"making {self.folder.relative_to(ROOT)} with Python {self._version}",
                self._stamps / "environment",
                self._digest([]),
                self._make,
            ),
            Step(
                f"building the patched SGLang, {self.flavour} flavour, and installing it",
                self._stamps / "package",
                f"{patched} {package}",
                self._install_package,
                suffices=patched if package_of_checkout else "",
            ),
            dependencies,
        ]

    def _test_steps(self) -> list[Step]:
        compiler = Step(
            "installing a C++ compiler, because there is none",
            self._stamps / "compiler",
            self._digest([COMPILER]),
            self._install_compiler,
        )
        tools = Step(
            "installing the tools of the tests",
            self._stamps / "test-tools",
            self._digest([TEST_REQUIREMENTS]),
            lambda: self._pip("install", "--requirement", str(TEST_REQUIREMENTS)),
        )
        return [
            tools,
            *([] if has_compiler(os.environ) else [compiler]),
            Step(
                "building SGLang without the LZ patches, to compare with",
                self._stamps / "stock",
                self._digest([self._lock, *files_below(self._patches / "cpu", CPU)]),
                self._install_stock,
            ),
        ]

    def _clients_step(self) -> Step:
        return Step(
            "installing the clients of other projects that the tests serve",
            self._stamps / "clients",
            self._digest([CLIENTS_LOCK]),
            self._install_clients,
        )

    def _digest(self, files: Iterable[Path]) -> str:
        """A digest of files, and of the Python and the location, on which every step depends."""
        return digest(ROOT, files, self._version, str(self.folder))

    def _make(self) -> None:
        self._make_at(self.folder)

    def _make_at(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._run(
            [sys.executable, "-m", "venv", str(folder)],
            f"Python's venv module could not make {folder}",
        )

    def _install_package(self) -> None:
        wheel = self._build("dist")
        self._pip("install", "--no-deps", "--no-compile", "--force-reinstall", str(wheel))
        date_by_contents(self.packages / "sglang_lz")
        self._compile("sglang", "sglang_lz", "sgl_kernel")

    def _install_dependencies(self) -> None:
        self._pip("install", "--no-compile", "sglang")  # already installed: only its requirements
        self._compile(".")

    def _install_compiler(self) -> None:
        self._pip("install", "--no-compile", "--requirement", str(COMPILER))
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
        self._run([str(wrapper), *nothing], "the compiler does not compile")

    def _install_clients(self) -> None:
        self._make_at(CLIENTS)
        locked = ("--require-hashes", "--requirement", str(CLIENTS_LOCK))
        self._pip("install", "--no-compile", *locked, python=CLIENTS / "bin" / "python")

    def _install_stock(self) -> None:
        shutil.rmtree(self.stock, ignore_errors=True)
        wheel = self._build("stock-dist", "--groups", "cpu")
        self._pip("install", "--no-deps", "--no-compile", "--target", str(self.stock), str(wheel))
        self._compile(str(self.stock))

    def _build(self, folder: str, *options: str) -> Path:
        out = CACHE / folder
        shutil.rmtree(out, ignore_errors=True)
        command = [str(self.python), "-m", "sglang_lz", "build", "--flavour", self.flavour]
        command += ["--out", str(out), "--cache", str(CACHE / "upstream"), *options]
        self._run(command, "the patched wheel could not be built", checkout=True)
        (wheel,) = out.glob("*.whl")
        return wheel

    def _pip(self, *arguments: str, python: Path | None = None) -> None:
        self._run(
            [str(python or self.python), "-m", "pip", *arguments],
            "pip could not install what is needed",
        )

    def _compile(self, *names: str) -> None:
        """Compile packages to bytecode; otherwise every start takes twice as long."""
        folders = [str(self.packages / name) for name in names if (self.packages / name).exists()]
        # Some packages contain files for other Python versions; those that fail are ignored.
        command = [
            str(self.python),
            "-Wignore",
            "-m",
            "compileall",
            "-qq",
            "-j0",
            "-x",
            NOT_COMPILED,
        ]
        self._run([*command, *folders], None)

    def _run(self, command: list[str], failure: str | None, *, checkout: bool = False) -> None:
        env = self.variables(home=False)
        if checkout:
            env["PYTHONPATH"] = str(ROOT / "python")
        status = _supervise.run(command, env=env, cwd=ROOT)
        if status and failure:
            raise SetupError(f"{failure}, see the lines above; run this again to go on from here.")

    @contextlib.contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """The TMPDIR for this process's children; those of dead processes are removed.

        Raises:
            SetupError: its path is too long for the sockets that the server creates in it.
        """
        folder = _temporary_folder()
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

    def variables(self, *, home: bool = True) -> dict[str, str]:
        """Environment variables for a child process, so that it uses only this environment.

        If the user has set HF_HOME or PIP_CACHE_DIR, they are kept, because those caches may be
        shared.

        Args:
            home: also replace HOME. Not for pip, because HOME contains its configuration.
        """
        unwanted = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
        env = {name: value for name, value in os.environ.items() if name not in unwanted}
        env["PATH"] = os.pathsep.join([str(self.python.parent), env.get("PATH", os.defpath)])
        env["PYTHONUNBUFFERED"] = "1"
        env["TMPDIR"] = str(_temporary_folder())
        env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
        env.setdefault("PIP_CACHE_DIR", str(CACHE / "pip"))
        if home:
            folder = CACHE / "home"
            folder.mkdir(parents=True, exist_ok=True)
            env = {name: value for name, value in env.items() if not name.startswith("XDG_")}
            env["HOME"] = str(folder)
        return env


def _temporary_folder() -> Path:
    return CACHE / "tmp" / str(os.getpid())


def say(text: str) -> None:
    """Print a message to standard error without buffering."""
    print(f"sglang-lz: {text}", file=sys.stderr, flush=True)


def main(program: Callable[[list[str]], int]) -> None:
    """Run a script's `program` with its arguments; exit with a status and never a traceback."""
    try:
        status = program(sys.argv[1:])
    except DistError as error:
        say(str(error))
        status = 1
    except _supervise.Ended as ended:
        say(f"ended by {ended}")
        status = ended.status
    except KeyboardInterrupt:
        status = 130
    except OSError as error:
        say(f"{error.filename or 'the system'}: {error.strerror}.")
        status = 1
    sys.exit(status)
