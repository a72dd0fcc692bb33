"""scripts/gpu-bundle: pack SGLang for a GPU machine without network."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from _environment import CACHE, ROOT, SetupError, main, say

BUNDLE = ROOT / ".gpu" / "site.zip"
LIMIT_MIB = 50
REQUIREMENTS = ROOT / "scripts" / "requirements-gpu.txt"
_GPU = ROOT / "scripts" / "gpu"
STAND_INS = {
    "sglang/kernels/ops/gemm/cutedsl_dual_gemm.py": _GPU / "cutedsl_dual_gemm.py",
    **{
        f"flash_mla/{name}": _GPU / "flash_mla" / name
        for name in ("__init__.py", "flash_mla_interface.py")
    },
}
"""What takes the place of a file in the bundle, or of a package that is not in it."""

LEFT_OUT = re.compile(
    # SGLang's: diffusion, tests, and compiled code that no Python server loads.
    r"sglang/(multimodal_gen|test|srt/rust_extensions/.*\.so$)"
    # sglang-kernel's: other GPUs, attention kernels that Triton's replace.
    r"|sgl_kernel/(sm100/|(flash|flashmla|infllm)_ops\.)|triton_kernels/"
    # Files of wheels that are installed outside site-packages.
    r"|[^/]+\.data/"
)
TAGS = [
    *["--python-version", "3.12", "--implementation", "cp"],
    *["--abi", "cp312", "--abi", "abi3", "--abi", "none"],
    # pip accepts exactly these tags; a newer one does not include the older ones.
    *["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_17_x86_64"],
    *["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64"],
]


def pack(wheels: Iterable[Path], bundle: Path, limit_mib: float) -> int:
    """Write the required parts of some wheels into one archive, to be unpacked as site-packages.

    Args:
        wheels: the wheel files.
        bundle: the archive, which replaces an existing one.
        limit_mib: its maximum size in MiB.

    Returns:
        its size in bytes.

    Raises:
        SetupError: it is larger than the limit; it is not written then.
    """
    bundle.parent.mkdir(parents=True, exist_ok=True)
    new = bundle.with_suffix(".new")
    with zipfile.ZipFile(new, "w") as archive:

        def add(name: str, data: bytes) -> None:
            # ZipInfo has a fixed date, so the same wheels give the same bundle.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_LZMA)

        for wheel in wheels:
            with zipfile.ZipFile(wheel) as source:
                for name in source.namelist():
                    if name not in STAND_INS and not LEFT_OUT.match(name) and name[-1] != "/":
                        add(name, source.read(name))
        for name, file in STAND_INS.items():
            add(name, file.read_bytes())
    size = new.stat().st_size
    if size > limit_mib * 2**20:
        new.unlink()
        raise SetupError(
            f"the bundle is {size / 2**20:.1f} MiB, {limit_mib:g} MiB are allowed: leave out more."
        )
    new.replace(bundle)
    return size


def download(folder: Path) -> list[Path]:
    """Fetch the wheels of `REQUIREMENTS` into an empty folder, verified by their pinned sha256."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", *TAGS, "--dest", str(folder)]
    _run([*command, "--requirement", str(REQUIREMENTS)], "pip could not download the requirements")
    return sorted(folder.glob("*.whl"))


def build(folder: Path) -> Path:
    """Build the patched wheel of the CUDA flavour in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "sglang_lz", "build", "--python", "cp312", "--arch", "x86_64"]
    command += ["--flavour", "cuda", "--cache", str(CACHE / "upstream"), "--out", str(folder)]
    _run(command, "the patched wheel could not be built")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _run(command: list[str], otherwise: str) -> None:
    done = subprocess.run(command, cwd=ROOT / "python", stdout=sys.stderr, check=False)
    if done.returncode:
        raise SetupError(f"{otherwise} (exit status {done.returncode}).")


def bundle(arguments: list[str]) -> int:
    """Run the script; returns its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-bundle", description=__doc__)
    parser.add_argument(
        "--limit-mib", type=float, default=LIMIT_MIB, help="fail above it (default: %(default)s)"
    )
    limit = parser.parse_args(arguments).limit_mib
    wheels = [build(CACHE / "gpu-dist"), *download(CACHE / "gpu-wheels")]
    size = pack(wheels, BUNDLE, limit)
    say(f"{BUNDLE.relative_to(ROOT)}: {len(wheels)} packages, {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    main(bundle)
