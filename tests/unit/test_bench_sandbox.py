"""Programs of models: what is run of an output, what the sandbox refuses, what is kept."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from bench.models import answers, sandbox
from bench.models.grid import Item
from bench.models.sandbox import _NAMESPACES, PASSED, SandboxError, _status, passes

pytestmark = pytest.mark.slow


has_namespaces = subprocess.run(["unshare", *_NAMESPACES, "true"], check=False).returncode == 0
needs_sandbox = pytest.mark.skipif(not has_namespaces, reason="the kernel gives no namespaces")

CODE = "def f(x):\n    return x"
OUTPUTS = [
    (f"Here:\n```python\n{CODE}\n```\nIt returns x.", CODE),
    ("```py\nprint(f(1))\n```\n```\n" + CODE + "\n```\n```\ndef f(y): pass\n```", CODE),
    ("- so:\n  ```python\n  " + CODE.replace("\n", "\n  ") + "\n  ```", CODE),
    (CODE, CODE),
    (f"```python\n{CODE}\n", None),  # cut off
    ("```python\ndef f2(x): pass\n```", None),
    ("```python\nclass A:\n    def f(x): pass\n```", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "code"), OUTPUTS)
def test_the_code_of_an_output(text: str, code: str | None) -> None:
    assert answers.function(text, "f") == code


GOOD = {
    "ends": "x = 1",
    "own folder": "open('a', 'w').write('x'); assert open('a').read() == 'x'",
    "own folder is empty": "import os; assert not os.listdir()",
    "no environment": "import os; assert not os.environ; assert os.getpid() == 1",
    "had no environment": "assert not open('/proc/self/environ').read()",
    "standard library": "import decimal, hashlib, heapq, math, random, re, typing",
    "nothing else": "import sys; assert not any('site-packages' in path for path in sys.path)",
    "prints much": "for _ in range(1000): print('x' * 10**6)",
    "closes its outputs": "import os, sys; sys.stdout.close(); os.close(1); os.close(2)",
    "has no main": "if __name__ == '__main__': raise SystemExit",
}
ME = os.getpid()
LEFT = Path(f"/tmp/left-by-a-sandbox-{ME}")
HOSTILE = {
    "fails": "assert False",
    "is no program": "def f(:",
    "exits": "import sys; sys.exit(0)",
    "exits at once": "import os; os._exit(0)",
    "recursion": "def f(): f()\nf()",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "memory": "x = []\nwhile True: x.append(bytes(10**6))",
    "memory at once": "x = bytes(2 << 30)",
    "memory as a file": "import os; f = os.memfd_create('a')\n"
    "for _ in range(17): os.write(f, bytes(1 << 20))",
    "forks": "import os; os.fork()",
    "forks for ever": "import os\nwhile True: os.fork()",
    "thread": "import threading; threading.Thread(target=print).start()",
    "other program": "import os; os.execv('/bin/true', ['true'])",
    "writes to /tmp": f"open({str(LEFT)!r}, 'w')",
    "writes beside itself": f"open({str(Path(__file__).with_name('left'))!r}, 'w')",
    "deletes": f"import os; os.remove({str(Path(__file__))!r})",
    "large file": "open('a', 'w').write('x' * (17 << 20))",
    "many files": "for i in range(40): open(f'{i}', 'w').write('x' * (1 << 20))",
    "device": "open('/dev/null', 'w')",
    "socket": "import socket; socket.socket()",
    "socket of a file": "import socket; socket.socket(socket.AF_UNIX)",
    "kills": f"import os; os.kill({ME}, 0)",
    "our environment": f"open('/proc/{ME}/environ').read()",
    "input": "input()",
}
CALL = "import ctypes, struct; libc = ctypes.CDLL(None); assert not libc."
HOSTILE |= {
    "writable again": CALL + "syscall(442, -100, b'/', 0, struct.pack('QQQQ', 0, 1, 0, 0), 32)",
    "mounts": CALL + "mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "namespace": CALL + "unshare(0x10000000)",
}


@needs_sandbox
@pytest.mark.parametrize("program", GOOD.values(), ids=GOOD)
def test_programs_that_end(program: str) -> None:
    assert passes(program)


@needs_sandbox
@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_programs_that_must_not(program: str) -> None:
    started = time.monotonic()
    assert _status(program, 60) not in (None, PASSED)
    assert time.monotonic() - started < 30
    assert Path(__file__).exists()
    assert not LEFT.exists()


@needs_sandbox
@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60)"])
def test_time_is_limited(program: str) -> None:
    started = time.monotonic()
    assert not passes(program, seconds=2)
    assert time.monotonic() - started < 15
    assert b"import ctypes, os, resource" not in b"".join(
        command.read_bytes() for command in Path("/proc").glob("[0-9]*/cmdline") if _alive(command)
    )


def _alive(command: Path) -> bool:
    try:
        return bool(command.read_bytes())
    except OSError:
        return False


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox._require.cache_clear()
    monkeypatch.setattr(sandbox, "_NAMESPACES", ("--no-such-namespace",))
    with pytest.raises(SandboxError, match="this machine has none"):
        passes("x = 1")
    monkeypatch.undo()
    sandbox._require.cache_clear()


CHECK = {"function": "f", "before": "def f(x): ...", "after": "assert f(3) == 3"}
ITEM = Item("humaneval/0", "?", None, check=CHECK)
RIGHT, WRONG = f"```\n{CODE}\n```", "```\ndef f(x): return 4\n```"


@needs_sandbox
def test_verdicts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [(ITEM, RIGHT), (ITEM, WRONG), (ITEM, "no code"), (ITEM, RIGHT)]
    assert answers.judge(tmp_path, asked) == [True, False, False, True]
    lines = (tmp_path / answers.GRADES).read_text().splitlines()
    assert sorted(json.loads(line)["right"] for line in lines) == [False, True]
    ran = []
    monkeypatch.setattr(sandbox, "passes", lambda program: ran.append(program) or True)
    mixed = [(Item("t/1", "?", "5"), "Answer: 5"), (Item("t/2", "?", None), "so"), *asked]
    assert answers.judge(tmp_path, mixed) == [True, None, True, False, False, True]
    assert not ran
    assert answers.judge(tmp_path, [(ITEM, RIGHT.replace("x", "y"))]) == [True]
    assert ran == [f"def f(x): ...\n{CODE.replace('x', 'y')}\nassert f(3) == 3\n"]


def test_answers_of_reasoning_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Data:
        def score_answer(self, answer: str, entry: dict[str, str]) -> float:
            return 1.0 if answer == entry["answer"] else 0.5

    monkeypatch.setattr(answers, "gym", lambda name, size: {("sums", 1): Data()}[name, size])
    item = Item("sums/0", "?", None, check={"gym": "sums", "entry": {"answer": "7000"}})
    said = [
        "7.\nAnswer: 7000.",
        "Answer: 7,000",
        "Answer: x = 9000 - 2000 = 7000",
        "Answer: 7",
        "7000",
    ]
    asked = [(item, f"So {answer}") for answer in said]
    assert answers.judge(tmp_path, asked) == [True, True, True, False, False]
