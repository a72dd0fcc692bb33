"""The small models of the tests: directories in Hugging Face format for `--model-path`.

`MODEL_PATH` is a chat model that loops under greedy decoding. `REASONER_PATH` solves puzzles step
by step, and its answers can be scored. Their READMEs describe them. The CUDA flavour includes only
`MODEL_PATH`.
"""

from pathlib import Path

MODEL_PATH: Path = Path(__file__).resolve().parent / "model"
REASONER_PATH: Path = Path(__file__).resolve().parent / "reasoner"
