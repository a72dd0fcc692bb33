"""The small models of this distribution, directories in Hugging Face format for `--model-path`.

`MODEL_PATH` is a chat model that loops when decoded greedily; `REASONER_PATH` solves puzzles step
by step, so that its answers can be scored. Their READMEs say what they are. The CUDA flavour has
only `MODEL_PATH`.
"""

from pathlib import Path

MODEL_PATH: Path = Path(__file__).resolve().parent / "model"
REASONER_PATH: Path = Path(__file__).resolve().parent / "reasoner"
