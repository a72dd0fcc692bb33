"""The demo model's training text: the documentation topics that every CPython carries.

`pydoc_data.topics` is the text behind `help("while")`: about 80 chapters of the language reference,
0.5 MB, licensed under PSF-2.0. It differs between CPython versions, so `sha256` names the text that
a model was trained on.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

QUESTIONS = (
    "What does Python say about {}?",
    "Explain {} in Python.",
    "Tell me about {}.",
    "help({!r})",
    "How does {} work in Python?",
)

# Ruled lines and tables are typography: a small model learns nothing from them but to draw lines.
_TYPOGRAPHY = re.compile(r"[*=\-~^+|]{4}[\s*=\-~^+|]*|[|+] .*|[|+]")


@dataclass(frozen=True)
class Topic:
    """One chapter: its name as `help()` knows it and its paragraphs in order."""

    name: str
    paragraphs: tuple[str, ...]


def load() -> list[Topic]:
    """Return the running CPython's topics, sorted by name."""
    return [Topic(name, tuple(_paragraphs(text))) for name, text in sorted(topics.items())]


def sha256(chapters: list[Topic]) -> str:
    """Return the hex digest that identifies a corpus, independent of how it is sampled."""
    digest = hashlib.sha256()
    for chapter in chapters:
        digest.update("\0".join((chapter.name, *chapter.paragraphs, "")).encode())
    return digest.hexdigest()


def chat(question: str, answer: str) -> str:
    """Return one exchange in ChatML, as `train.CHAT_TEMPLATE` renders it."""
    return (
        f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n{answer}{IM_END}\n{END_OF_TEXT}"
    )


def examples(chapters: list[Topic], seed: int) -> Iterator[str]:
    """Yield training texts without end: three exchanges in four, else plain text.

    Each starts at a random paragraph of the corpus, so that long chapters are seen whole, and runs
    to its chapter's end.
    """
    rng = random.Random(seed)
    starts = [(chapter, i) for chapter in chapters for i in range(len(chapter.paragraphs))]
    while True:
        chapter, start = rng.choice(starts)
        text = "\n\n".join(chapter.paragraphs[start:])
        if rng.random() < 0.75:
            yield chat(rng.choice(QUESTIONS).format(chapter.name), text)
        else:
            yield f"{text}{END_OF_TEXT}"


def _paragraphs(text: str) -> Iterator[str]:
    lines = (line.rstrip() for line in text.splitlines())
    kept = ("" if _TYPOGRAPHY.fullmatch(line.strip()) else line for line in lines)
    for paragraph in re.split(r"\n{2,}", "\n".join(kept).strip("\n")):
        yield _unwrap(paragraph)


def _unwrap(paragraph: str) -> str:
    """Join the lines of a wrapped paragraph; leave code, grammar and tables alone.

    All lines of wrapped prose but its last are nearly full. Line ends in mid-sentence are noise to
    a small model.
    """
    first, *rest = paragraph.split("\n")
    if not rest or min(len(line) for line in (first, *rest[:-1])) < 55 or "::=" in paragraph:
        return paragraph
    return " ".join((first, *(line.strip() for line in rest)))
