"""How large a container image is, and what in it.

python -m bench.images IMAGE --base BASE --what KEY --note WORDS
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from bench import common, records

SHOWN = 12
INSIDE = """
import importlib.metadata, json, os, site
folder = site.getsitepackages()[0]
def size(path):
    if os.path.islink(path) or os.path.isfile(path): return os.lstat(path).st_size
    return sum(size(entry.path) for entry in os.scandir(path))
found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions(path=[folder])}
print(json.dumps([{name: size(os.path.join(folder, name)) for name in os.listdir(folder)}, found]))
"""


def measure(engine: str, image: str, base: str) -> dict[str, Any]:
    """Return the sizes of an image, of its base, and of its largest Python packages, in MB."""
    run = [engine, "run", "--rm", "--network=host", "--entrypoint=python3", image, "-c", INSIDE]
    folders, installed = json.loads(_output(*run))
    largest = sorted(folders, key=folders.__getitem__, reverse=True)[:SHOWN]
    whole, below = (int(_size(engine, name)) for name in (image, base))
    label = '{{index .Labels "org.opencontainers.image.version"}}'
    return {
        "version": _output(engine, "image", "inspect", "--format", label, image).strip(),
        "image_mb": _mb(whole),
        "base_mb": _mb(below),
        "added_mb": _mb(whole - below),
        "packages_mb": _mb(sum(folders.values())),
        "largest_mb": {name: _mb(folders[name]) for name in largest},
        "installed": {name: installed[name] for name in sorted(installed, key=str.lower)},
    }


def _size(engine: str, image: str) -> str:
    return _output(engine, "image", "inspect", "--format", "{{.Size}}", image)


def _output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _mb(size: int) -> float:
    return round(size / 1e6, 1)


def main() -> None:
    """Measure one image and put it beside the others in the result file."""
    parser = argparse.ArgumentParser(
        "python -m bench.images",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("image")
    parser.add_argument("--base", required=True, help="what it was built on")
    parser.add_argument("--what", required=True, help="its key in the file, such as cpu")
    parser.add_argument("--note", required=True, help="what the base is")
    parser.add_argument("--engine", default="podman")
    parser.add_argument("--out", type=Path, default=common.RESULTS / "images.json")
    chosen = parser.parse_args()
    results = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    results[chosen.what] = {
        "machine": common.machine(),
        "engine": common.output(chosen.engine, "--version"),
        "base": chosen.note,
        **measure(chosen.engine, chosen.image, chosen.base),
    }
    records.write(chosen.out, json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
