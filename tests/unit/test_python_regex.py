"""What we use of Python's private parser of regular expressions (`re._parser`), on each Python."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = [
    text
    for file in (Path(__file__).parents[2] / "python").rglob("*.py")
    if "import re._parser as op" in (text := file.read_text())
]
NAMES = sorted({name for text in SOURCES for name in re.findall(r"\bop\.([A-Z_]+)\b", text)})


def works(python: str) -> bool:
    """Whether this is a Python, and not a stub that only tells how to install one."""
    return not subprocess.run([python, "-I", "-c", ""], capture_output=True, check=False).returncode


ON_PATH = filter(None, map(shutil.which, ("python3.11", "python3.12", "python3.13")))
BESIDE = sorted(map(str, Path(sys.base_prefix).parent.glob("3.1[123].*/bin/python")))
PYTHONS = [sys.executable, *filter(works, (*ON_PATH, *BESIDE))]
"""The running Python, and the other supported ones that this machine has, on the path or beside the
running one."""
PARSED = {
    "ab": "[(LITERAL, 97), (LITERAL, 98)]",
    "[^a]": "[(NOT_LITERAL, 97)]",
    r"[^a-c\w]": "[(IN, [(NEGATE, None), (RANGE, (97, 99)), (CATEGORY, CATEGORY_WORD)])]",
    r"[\d\D\s\S]": "[(IN, [(CATEGORY, CATEGORY_DIGIT), (CATEGORY, CATEGORY_NOT_DIGIT), "
    "(CATEGORY, CATEGORY_SPACE), (CATEGORY, CATEGORY_NOT_SPACE)])]",
    "^.$": "[(AT, AT_BEGINNING), (ANY, None), (AT, AT_END)]",
    r"\W": "[(IN, [(CATEGORY, CATEGORY_NOT_WORD)])]",
    "a*": "[(MAX_REPEAT, (0, MAXREPEAT, [(LITERAL, 97)]))]",
    "a{2,3}?": "[(MIN_REPEAT, (2, 3, [(LITERAL, 97)]))]",
    "a++": "[(POSSESSIVE_REPEAT, (1, MAXREPEAT, [(LITERAL, 97)]))]",
    "(?>a)": "[(ATOMIC_GROUP, [(LITERAL, 97)])]",
    "ab|c": "[(BRANCH, (None, [[(LITERAL, 97), (LITERAL, 98)], [(LITERAL, 99)]]))]",
    "(a)": "[(SUBPATTERN, (1, 0, 0, [(LITERAL, 97)]))]",
    "(?i:a)": "[(SUBPATTERN, (None, 2, 0, [(LITERAL, 97)]))]",
    "(?=a)": "[(ASSERT, (1, [(LITERAL, 97)]))]",
    "(?<!a)": "[(ASSERT_NOT, (-1, [(LITERAL, 97)]))]",
}
PROGRAM = """
import re, re._parser as op, sys
print([repr(op.parse(pattern)) for pattern in sys.argv[2:]])
print([name for name in sys.argv[1].split() if str(getattr(op, name, None)) != name])
for wrong in ("(", "a**", "[b-a]"):
    try:
        op.parse(wrong)
    except re.error:
        continue
    print(wrong)
"""


@pytest.mark.parametrize("python", dict.fromkeys(PYTHONS))
def test_the_parser_output_is_the_same_on_every_python(python: str) -> None:
    assert "MAX_REPEAT" in NAMES
    command = [python, "-I", "-c", PROGRAM, " ".join(NAMES), *PARSED]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    parsed, unknown, *accepted = done.stdout.splitlines()
    assert dict(zip(PARSED, ast.literal_eval(parsed), strict=True)) == PARSED
    assert ast.literal_eval(unknown) == []
    assert accepted == []
