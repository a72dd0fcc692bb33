"""The demo model's training text: the documentation topics that come with every CPython.

`pydoc_data.topics` is the text behind `help("while")`: about 80 chapters of the language reference,
0.5 MB, licensed under PSF-2.0. It differs between CPython versions, so `sha256` identifies the text
that a model was trained on.
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

# Ruled lines and tables: a small model learns nothing from them except drawing lines.
_TYPOGRAPHY = re.compile(r"[*=\-~^+|]{4}[\s*=\-~^+|]*|[|+] .*|[|+]")


@dataclass(frozen=True)
class Topic:
    """One chapter: its name in `help()`, and its paragraphs in order."""

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
    """Yield training texts indefinitely: three quarters are exchanges, the rest is plain text.

    Each starts at a random paragraph of the corpus, so that all parts of long chapters are seen,
    and ends at the end of its chapter.
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

    Every line of wrapped prose except the last is nearly full. Line breaks within sentences are
    noise for a small model.
    """
    first, *rest = paragraph.split("\n")
    if not rest or min(len(line) for line in (first, *rest[:-1])) < 55 or "::=" in paragraph:
        return paragraph
    return " ".join((first, *(line.strip() for line in rest)))
