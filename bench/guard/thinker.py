"""The pocket reasoner as a model that thinks: its chain of thought is a thinking section.

It writes its chain of thought, then "Answer: ...". "Answer" is one token of its vocabulary. In the
copy made here that token is spelt "</think>", so that a reasoning parser takes the chain of thought
for a thinking section. Weights and token ids are the same.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from sglang_lz.demo import REASONER_PATH

THINK_END = "</think>"
SPELT = "Answer"


def make(out: Path) -> Path:
    """Write the copy into a new folder and return it."""
    shutil.copytree(REASONER_PATH, out)
    file = out / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    token = vocabulary.pop(SPELT)
    vocabulary[THINK_END] = token
    tokenizer["model"]["merges"] = [
        merge for merge in tokenizer["model"]["merges"] if _joined(merge) != SPELT
    ]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"].append({"id": token, "content": THINK_END, **flags, "special": False})
    file.write_text(json.dumps(tokenizer, ensure_ascii=False))
    return out


def said(thought: str, content: str) -> str:
    """The output as the pocket reasoner itself would spell it."""
    return f"{thought}{SPELT}{content}"


def _joined(merge: str | list[str]) -> str:
    return merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)
