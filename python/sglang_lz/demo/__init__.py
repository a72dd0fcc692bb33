"""The demo model of this distribution: a tiny chat model that loops when decoded greedily.

`MODEL_PATH` is a directory in Hugging Face format, fit for `--model-path`; its README says what the
model is.
"""

from pathlib import Path

MODEL_PATH: Path = Path(__file__).resolve().parent / "model"
