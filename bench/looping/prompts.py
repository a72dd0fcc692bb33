"""The prompts of a looping model: `python -m bench.looping prompts code --model DIR --out FILE`.

Five groups, each another way into a loop. All are drawn from the model's own text by a seed:

- plain: 64 tokens of the text, to be continued.
- paragraph: a passage of the training's loops, given twice, to be given again; the level is about
  its length in tokens, which is the period of the loop.
- template: lines that differ by a number or a name.
- json, regex: a grammar that allows to go on for ever, by whitespace or in a string.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bench import records
from bench.looping import corpus
from bench.looping.train import units

PLAIN = 24
OF_GRAMMAR = 3
COPIES = 2

TEMPLATES = {
    "code": (
        "ERROR_{i} = {i}\n",
        "    def test_{name}(self):\n        self.assertEqual(self.{name}, {i})\n\n",
        "        elif code == {i}:\n            return '{name}'\n",
        "{name} = property(lambda self: self._{name})\n",
        "    '{name}': {i},\n",
        "# {i}. {name}\n",
        "    self.{name} = {name}\n",
        "    assert {name}({i}) == {i}\n",
    ),
    "prose": (
        "{i}. Run the ``{name}`` command and check its output.\n",
        "* Fixed a bug in Django {i} that caused ``{name}`` to crash.\n",
        "* ``{name}``: see :ref:`{name}`\n",
        "Step {i}: open the file and add the setting {name}.\n\n",
        "Chapter {i}. The {name} option\n\n",
        "The answer to question {i} is {name}. ",
        "| {i} | {name} |\n",
        "On line {i}, replace ``{name}`` with ``new_{name}``.\n",
    ),
}
NAMES = ("width", "height", "name", "value", "index", "default", "path", "model", "field", "size")

OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "values": {"type": "array"}},
    "required": ["name", "values"],
}
WORDS = {"type": "array", "items": {"type": "string"}, "minItems": 200}
GRAMMARS: dict[str, tuple[dict[str, object], ...]] = {
    "json": tuple(
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema},
            }
        }
        for schema in (OBJECT, WORDS, {"type": "string"})
    ),
    "regex": tuple({"regex": regex} for regex in (r"([a-z]+ )+\.", r"\[\s*(\d+,\s*)+\]")),
}


def prompts(name: str, tokenizer: Any, seed: int = 0) -> Iterator[dict[str, object]]:
    """Yield the items of the model `name`, as a jsonl task has them.

    `tokenizer` is the model's own: it measures the slices.
    """
    rng = random.Random(f"{name} {seed}")
    texts = corpus.TEXTS[name]()

    def slice_of(length: int) -> str:
        while True:
            text = rng.choice(texts)
            start = rng.randrange(len(text))
            ids = tokenizer.encode(text[start : start + 12 * length])
            if len(ids) >= length:
                return str(tokenizer.decode(ids[:length]))

    for _ in range(PLAIN):
        yield {"group": "plain", "prompt": slice_of(64), "fields": {"ignore_eos": True}}
    for period, text in units(texts, tokenizer, seed):
        yield {
            "group": "paragraph",
            "level": str(period),
            "prompt": text * COPIES,
            "fields": {"ignore_eos": True},
        }
    for template in TEMPLATES[name]:
        for first in (1, 40):
            lines = [
                template.format(i=first + i, name=NAMES[(first + i) % len(NAMES)]) for i in range(6)
            ]
            yield {"group": "template", "prompt": "".join(lines), "fields": {"ignore_eos": True}}
    for group, grammars in GRAMMARS.items():
        for fields in grammars:
            for _ in range(OF_GRAMMAR):
                yield {"group": group, "prompt": slice_of(48), "fields": fields}


def write(name: str, model: Path, out: Path) -> None:
    """Write the prompts of the model in the folder `model` to a JSONL file.

    They are shuffled, so that any beginning of the file has some of each group.
    """
    items = [
        {"id": f"{name}-{number:03}", **item}
        for number, item in enumerate(prompts(name, AutoTokenizer.from_pretrained(model)))
    ]
    random.Random(name).shuffle(items)
    records.write(out, "".join(json.dumps(item) + "\n" for item in items))
