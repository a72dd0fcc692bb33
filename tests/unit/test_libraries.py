"""The libraries: what installs of each, and the examples of their READMEs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang_lz.demo import MODEL_PATH

PYTHON = Path(__file__).resolve().parents[2] / "python"
LIBRARIES = ("lz_penalty", "proper_tokens")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_installs_by_itself(library: str, tmp_path: Path) -> None:
    """All of its modules, and nothing else of ours; each loads where the others are not."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--no-compile", "--target", str(tmp_path)]
    subprocess.run([*command, str(PYTHON / library)], check=True)
    modules = {file.relative_to(PYTHON) for file in (PYTHON / library).rglob("*.py")}
    assert {file.relative_to(tmp_path) for file in tmp_path.rglob("*.py")} == modules
    names = {".".join(module.with_suffix("").parts) for module in modules}
    others = {"sglang", "sglang_lz", *LIBRARIES} - {library}
    code = f"import importlib, sys\nsys.modules |= dict.fromkeys({sorted(others)})\n"
    code += f"for name in {sorted(names)}: importlib.import_module(name)\n"
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-P", "-c", code], env=env, cwd=tmp_path, check=True)


def example(library: str, known: dict[str, object]) -> dict[str, object]:
    """The variables after the example of a library's README."""
    readme = (PYTHON / library / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    exec(code, known)
    return known


def test_the_example_of_the_penalty_ends_a_loop() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    inputs = tokenizer("The list is 1 2 3 4 5 6 7, and", return_tensors="pt")
    plain = model.generate(**inputs, max_new_tokens=300)
    known = {"model": model, "tokenizer": tokenizer, "inputs": inputs}
    outputs = example("lz_penalty", known)["outputs"]
    ends = [tokenizer.decode(ids)[-40:] for ids in (plain[0], outputs[0])]
    assert ["0, 0, 0, 0, 0" in end for end in ends] == [True, False]


def test_the_example_of_proper_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(MODEL_PATH)
    text = example("proper_tokens", {})["text"]
    assert re.fullmatch(r"[A-Z][a-z]{2,12} has [1-9][0-9]{0,3} (cats|dogs)\.", str(text))
