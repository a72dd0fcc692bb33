"""`sglang-lz loops`: what it reads, what it counts, what it says of bad files."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lz_penalty.detector import Loop, loops
from lz_penalty.fields.repetition import RECOMMENDED, RepetitionDetection
from sglang_lz.cli import main
from sglang_lz.guard import past_outputs
from sglang_lz.guard.past_outputs import Output, Search

LOOP = [7, *([1, 2, 3] * 25), 1, 9]
FINE = list(range(50))


def test_all_loops_of_an_output_in_their_whole_length() -> None:
    output = array("q", [*LOOP, *FINE, *([5] * 30)])
    first = Loop(pattern_size=3, begin=1, end=77)
    assert first.count == 25
    assert list(loops(output, RECOMMENDED)) == [first, Loop(1, len(LOOP) + 50, len(output))]
    assert list(loops(array("q", FINE), RepetitionDetection(8, 0, 2))) == []


PROSE = "The quick brown fox, so it goes, sees what it sees. "
W, C = "words and signs", "characters"
# By name: a text that loops, and the unit that shows it. The first are from reports of users.
LOOPING: dict[str, tuple[str, str]] = {
    "a word": ("court " * 2000, W),
    "Chinese, after a clause": ("\u73b0\u5728,\u6211\u4eec\u8fd8\u4f1a" + "\u52a0" * 96, C),
    "a tool call": (
        '<tool_call>{"name":"bash_exec","arguments":{"command":"printf probe"}}</tool_call>\n' * 25,
        W,
    ),
    "exclamation marks after a word": ("Summary" + "!" * 2000, C),
    "blank lines in JSON": ('"confidence": "high"' + "\n    \n    ," * 200 + "\n", W),
    "an emoji": ("Bye " + "\U0001f60a" * 300, C),
    "a formula": ("$" + "\\mathbf { \\Psi } " * 60, W),
    "encoded zeros": ("data:image/png;base64,iVBORw0KGgo" + "A" * 4000, C),
    "encoded data": ("data:application/octet-stream;base64," + "QUJDREVG" * 300, C),
    "a special token": ("<|begin\u2581of\u2581sentence|>" * 400, W),
    "a list": ("".join(f"{n}. Pidgey\n" for n in range(1, 20)) + "Pidgey, " * 50, W),
    "a scream": ("\u300c\u304d\u3083" + "\u3042" * 60 + "\u3063\uff01\u300d she screamed", C),
    "a word asked for fifty times": ("test " * 50, W),
    "Arabic": ("\u0634\u0643\u0631\u0627 " * 100, W),
    "Devanagari": ("\u0939\u093e\u0901 " * 60, W),
    "Cyrillic without spaces": ("\u0434\u0430" * 300, C),
    "Chinese full stops": ("\u3002" * 300, C),
    "a period of digits": ("142857" * 60, C),
    "a long word": ("internationalization" * 20, C),
    "after prose": (PROSE * 3 + "ha" * 70, C),
    "before prose": ("-" * 300 + PROSE * 3, C),
}


def shuffled(*parts: str) -> str:
    return "".join(random.Random(7).choices(parts, k=120))


RIGHT: dict[str, str] = {
    "prose": PROSE * 15,
    "nineteen copies": "one two three " * 19,
    "a rule before code": "=" * 80 + "\n" + " " * 24 + "if",
    "long rules": f"# {'=' * 120}\n{'~' * 200}\n{'-' * 271}\n",
    "rules of code": f"def f():\n    pass\n\n{'#' * 100}\n" * 8,
    "a table": f"|{'---|' * 12}\n|{' a |' * 12}\n",
    "Japanese leaders and rules": "\u5e8f" + "\u30fb" * 60 + "1\n" + "\u30fc" * 60 + "\n",
    "empty columns": "a,b" + "," * 200 + '\n""' + ',""' * 60 + "\t" * 60 + "\n",
    "indentation": " " * 200 + "x\n" + "\t" * 40 + "x\n" + "\u3000" * 40 + "x\n",
    "a progress bar": f"[{'#' * 60}{' ' * 40}] 60 %\n" * 5 + "\u2588" * 80 + "\u2591" * 80,
    "a form": f"Name: {'_' * 80}\n{'_ ' * 40}\n",
    "a hex dump": "".join(f"{n:08x}  {'00 ' * 16} |{'.' * 16}|\n" for n in range(0, 999, 16)),
    "base64": "iVBORw0KGgo" + "A" * 100 + "ICAg" * 20 + "SUVORK5CYII=",
    "a heading of emoji": "#" + " " * 12 + "\U0001f6a8" * 48 + "\n#   Generated.\n",
    "a chorus": "La la la la la la la la\nHey hey hey\n" * 4,
    "similar queries": "".join(
        f"SELECT COUNT(*) FILTER (WHERE intake->>'{key}' IS NULL) AS missing_{key} FROM {table};\n"
        for table in "ab"
        for key in ("min", "max", "beds")
    ),
    # Loops that have no equal copies: by default, the guard does not see them either.
    "numbered lines": "".join(f"{n}. Orion - winter constellation\n" for n in range(9, 89)),
    "numbered calls": "".join(
        f'<tool_call>{{"name":"noop{n}","arguments":{{"command":"echo noop"}}}}</tool_call>\n'
        for n in range(155)
    ),
    "similar lines": shuffled(
        "course\u3001commit \u3057\u307e\u3059\u3002\n",
        "course\u3001\u78ba\u5b9a\u3057\u307e\u3059\u3002\n",
        "course\u3001\u5b9f\u884c\u3057\u307e\u3059\u3002\n",
    ),
    "an irregular formula": "A" + shuffled(*(" \\!" * n + " /" for n in (3, 4, 5, 6))),
    "promises": shuffled("I'll do it. ", "I'll start. ", "I'll write the code. "),
    "fragments": "Is" + shuffled("+In+Is", "+Ins+Is", "+IS+Is", "+Insine+Is", "+Inign+Is"),
}
# Characters and words, each a copy, in scripts that neither rules nor encoded data consist of.
SINGLE = (
    *("\u0e01", "\u0e01\u0e33", "\u1780", "\u179f\u17bd", "\u0f40", "\u0f56\u0f7c\u0f51\u0f0b"),
    *("\u1200", "\u1230\u120b\u121d", "\ud558", "\u1112\u1161\u11ab", "\u1100", "\u314b", "\u0e82"),
    *("\u1000", "\ua015", "\ua98f", "\u3105", "\u304d\u3083", "\u30a2", "\uff71", "\uff21"),
    *("\uff11", "\u52a0", "\u8c22\u4f60", "\U00020b9f", "\u0647", "\u0663", "\u05d4", "\u0434"),
    *("\u03b1", "\u10d0", "\u0561", "\u0b95", "\u0939\u093e", "\u00fc", "e\u0301", "\u0301"),
    *("\u200b", "\ufffd", "\ue000", "\u2705", "\u2728", "\u2764\ufe0f", "\u2600\ufe0f"),
    *("1\ufe0f\u20e3", "\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "ha\u3002", "court, ", "</p>", "fooBar!"),
)


def searched(text: str) -> Search:
    return past_outputs.searched(Output("a file", text), RECOMMENDED)


@pytest.mark.parametrize("name", LOOPING)
def test_texts_that_loop(name: str) -> None:
    text, unit = LOOPING[name]
    found = searched(text)
    assert found.loops
    assert found.unit == unit
    # Text in which the loop stands changes nothing.
    assert searched(PROSE + text + PROSE).loops


@pytest.mark.parametrize("name", RIGHT)
def test_texts_that_do_not_loop(name: str) -> None:
    assert searched(RIGHT[name]).loops == []


@pytest.mark.parametrize("one", SINGLE, ids=ascii)
def test_twenty_copies_are_a_loop_in_every_script(one: str) -> None:
    for before, after in (("", ""), (PROSE, PROSE), ("\n", " ")):
        assert not searched(before + one * 19 + after).loops
        assert searched(before + one * 20 + after).loops


@pytest.mark.parametrize(
    ("one", "most", "after"),
    [
        *[(sign, 280, "\n") for sign in "-=_#*. \u2500\u2588\u2026\u30fc!?"],
        *[(character, 128, "\n") for character in "aA0f"],
        *[("ha", 40, "\n"), ("ICAg", 20, ""), ("fooBar", 19, ""), ("\U0001f6a8", 50, "\r\n")],
    ],
)
def test_ordinary_repeats_are_loops_beyond_a_length(one: str, most: int, after: str) -> None:
    assert not searched(f"a:{one * most}{after}").loops
    unit, _, (loop,) = searched(f"a:{one * (most + 1)}{after}")
    assert (unit, loop.pattern_size, loop.count) == (C, len(one), most + 1)


def test_a_long_text_is_searched_in_time_that_grows_with_it() -> None:
    """Its runs end just before they are loops, so that each place is compared often."""
    runs = shuffled(*("a" * n + end for n in range(1, 20) for end in "bc")) * 800
    for text in (runs, "!" * 1_000_000, "a" * 1_000_000):
        start = time.process_time()
        searched(text)
        assert time.process_time() - start < 8


Said = Callable[..., str]
Report = Callable[..., dict[str, Any]]


@pytest.fixture
def said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs the command on a file of these contents; what it prints, or its error's text."""

    def run(data: str | bytes, *arguments: str, name: str = "answers", status: int = 0) -> str:
        (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        assert main(["loops", *arguments, str(tmp_path / name)]) == status
        printed = capsys.readouterr()
        assert status == 0 or printed.out == ""
        return printed.err if status else printed.out

    return run


@pytest.fixture
def report(said: Said) -> Report:
    """Likewise, the report as JSON."""
    return lambda data, *arguments, **name: json.loads(said(data, "--json", *arguments, **name))


def lines_of(records: list[Any]) -> str:
    return "\n".join(map(json.dumps, records))


def test_the_report_says_what_was_counted(said: Said, report: Report) -> None:
    data = lines_of([{"output_ids": LOOP}, {"text": "fine"}, {"text": "ha" * 150}])
    found = report(data)
    assert found["counted_in"] == {"tokens": 1, "words and signs": 1, "characters": 1}
    patterns = {(one["pattern_size"], one["unit"]) for one in found["patterns"]}
    assert patterns == {(3, "tokens"), (2, "characters")}
    told = said(data)
    assert "tokens (1 outputs), words and signs (1 outputs), characters (1 outputs)" in told
    assert "2   characters" in told


def test_records_of_all_kinds(report: Report) -> None:
    text = "so it goes, " * 30
    records = [
        {"output_ids": LOOP, "text": "nothing"},
        {"text": text},
        "a plain string",
        [{"text": text, "meta_info": {}}, {"text": "fine"}],
        {"choices": [{"message": {"content": "fine", "reasoning_content": text}}]},
        {"choices": [{"text": text}, {"text": "fine", "token_ids": LOOP}]},
        {"choices": [{"message": {"content": None, "reasoning_content": "thought"}}]},
        {"content": [{"type": "thinking", "thinking": "fine"}, {"type": "text", "text": text}]},
        {"response": {"body": {"choices": [{"message": {"content": text}}]}}},
    ]
    found = report(lines_of(records) + "\n\n")
    assert found["outputs"] == 11
    assert found["outputs_with_a_loop"] == 8
    # The thoughts' loop is followed by the answer, LOOP's by two more tokens.
    assert found["outputs_that_end_in_one"] == 5
    assert {p["pattern_size"] for p in found["patterns"]} == {3, 7}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is no JSON"),
        ('{"prompt": "a"}', "line 2 holds no output"),
        ("3", "line 2 holds no output"),
        ('{"tokens": [9223372036854775808]}', "line 2 holds token ids below 0 or above"),
        ('{"content": [1]}', "line 2 holds no output"),
        ('{"choices": [1]}', "line 2 holds no output"),
        ('[{"text": "a"}', "line 2 is no JSON"),
        ("\0\1", "line 2 is no JSON"),
        ("[" * 100_000, "line 2 is nested too deeply"),
        ('{"response":' * 900 + "1" + "}" * 900, "line 2"),
        ('{"a": ' + "1" * 5000 + "}", "line 2 is no JSON"),
        ('{"resps": [[["-1.5", "False"]]]}', "line 2 holds no output: its resps"),
        ('{"output": [{"type": "web_search_call"}]}', "line 2 holds no output"),
    ],
    ids=range(13),
)
def test_a_bad_record_is_named(said: Said, line: str, message: str) -> None:
    error = said(f'{{"text": "a"}}\n{line}\n', status=2)
    assert f"/answers, {message}" in error


def test_numbers_are_ignored_in_texts(said: Said, report: Report) -> None:
    """Also where a record has token ids besides; these alone do not show what is a number."""
    text = RIGHT["numbered lines"]
    data = lines_of([{"text": text}, {"text": text, "output_ids": FINE}, {"text": "fine"}])
    assert report(data)["outputs_with_a_loop"] == 0
    found = report(data, "--ignore-numbers")
    assert found["outputs_with_a_loop"] == found["outputs_that_end_in_one"] == 2
    assert found["tokens_in_loops"] == 2 * 79 * 11
    assert '"ignore_numbers": true' in said(data, "--ignore-numbers")
    ids = json.dumps({"output_ids": FINE})
    assert "line 1 has token ids without a text" in said(ids, "--ignore-numbers", status=2)


def test_bad_settings_and_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, said in (
        (["--min-count", "1", "x"], "min_count must be an integer in [2, 32767], got 1"),
        (["--max-pattern-size", "0", "x"], "--max-pattern-size must be above 0"),
        ([str(tmp_path / "none.jsonl")], "cannot be used"),
    ):
        assert main(["loops", *arguments]) == 2
        assert said in capsys.readouterr().err


TEXT = "so it goes, " * 30
TWO = [{"text": TEXT}, {"text": "fine"}]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.log", "a"])
@pytest.mark.parametrize(
    "written",
    [
        json.dumps(TWO),
        json.dumps(TWO, indent=2),
        json.dumps([TEXT, "fine"]),
        "\n".join(map(json.dumps, TWO)),
        "\ufeff" + "\r\n".join(map(json.dumps, TWO)),
    ],
    ids=["array", "indented", "texts", "lines", "mark"],
)
def test_json_is_read_in_all_its_forms(report: Report, name: str, written: str) -> None:
    found = report(written, name=name)
    assert (found["outputs"], found["outputs_with_a_loop"]) == (2, 1)


@pytest.mark.parametrize("indent", [None, 1])
def test_records_may_span_chunks(
    report: Report, monkeypatch: pytest.MonkeyPatch, indent: int | None
) -> None:
    records = [{"output_ids": LOOP}, {"text": TEXT}, {"output_ids": [123456]}] * 5
    for size in range(1, 40):
        monkeypatch.setattr(past_outputs, "CHUNK", size)
        for written in (json.dumps(records, indent=indent), lines_of(records)):
            found = report(written, name="a.json")
            assert (found["outputs"], found["outputs_with_a_loop"]) == (15, 10)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x04\x95", "is not text in UTF-8"),
        (b"", "holds no output"),
        (b"[]", "holds no output"),
        (gzip.compress(b"so it goes"), "unpack it first"),
        (json.dumps(TWO).encode("utf-16"), "is not text in UTF-8"),
        (b"[[" * 600, "is nested too deeply"),
        (b"[\n" + b"1,\n" * 3000, "is one value of more than 2,000 characters"),
        (b'{"text": "' + b"a" * 3000, "is one value of more than 2,000 characters"),
        (b'"b"\n{"text": "' + b"a" * 3000, "has a line of more than 2,000 characters"),
        (b"[2026-01-02 03:04:05] a\n" + b"a" * 3000, "has a line of more than 2,000 characters"),
        (b"a", "line 1 is no JSON (Expecting value)"),
        (b'\n[{"text": "a"},\n"b"\n"c"]', "line 4 is no JSON"),
    ],
    ids=range(12),
)
def test_unreadable_input_is_an_error(
    said: Said, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
) -> None:
    monkeypatch.setattr(past_outputs, "CHUNK", 500)
    monkeypatch.setattr(past_outputs, "LARGEST_RECORD", 2000)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own; a library may have raised it in this process
    try:
        assert message in said(data, status=2)
    finally:
        sys.setrecursionlimit(limit)


def test_standard_input() -> None:
    command = [sys.executable, "-m", "sglang_lz", "loops", "-"]
    for data, status, said in ((json.dumps(TEXT), 0, "100.00 %"), ("a", 2, "line 1 is no JSON")):
        done = subprocess.run(command, input=data, capture_output=True, text=True, check=False)
        assert done.returncode == status
        assert said in done.stdout + done.stderr


@pytest.mark.parametrize("text", ["[a link](b), " * 40, '"Well," he said. ' * 40, "{x}\n" * 40])
def test_a_text_may_begin_like_json(report: Report, text: str) -> None:
    found = report(text, name="answer.txt")
    assert (found["outputs"], found["outputs_with_a_loop"]) == (1, 1)


@pytest.mark.parametrize(
    ("record", "outputs"),
    [
        # lm_eval --log_samples: as many repeats as were asked for, of each request.
        ({"doc_id": 0, "resps": [[TEXT], [TEXT, TEXT]], "filtered_resps": ["fine"]}, 3),
        ({"message": {"role": "assistant", "content": "fine", "thinking": TEXT}}, 1),
        ({"choices": [{"message": {"content": "fine", "reasoning": TEXT}}]}, 1),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": TEXT}]}]}, 1),
        ({"output": [{"type": "reasoning", "content": [], "summary": [{"text": TEXT}]}]}, 1),
        ({"output": [{"type": "function_call", "arguments": TEXT}]}, 1),
        ({"content": [{"type": "tool_use", "input": {"a": TEXT}}]}, 1),
        ({"choices": [{"message": {"tool_calls": [{"function": {"arguments": TEXT}}]}}]}, 1),
    ],
)
def test_outputs_in_all_their_places(report: Report, record: Any, outputs: int) -> None:
    found = report(json.dumps(record))
    assert found["outputs"] == found["outputs_with_a_loop"] == outputs


# What upstream's RequestLogger writes, at its levels 2 and 3.
NOW = "[2026-11-24 20:30:14] "
CUT = "a" * 1024 + "..." + "b" * 1024


def logged(event: str, **more: Any) -> str:
    record = {"timestamp": "2026-11-24T20:30:14", "event": f"request.{event}", **more}
    return NOW + json.dumps(record)


LOG = [
    "some warning",
    "[2026-11-24 20:30:13 TP0] Decode batch, #running-req: 1",
    'INFO:     127.0.0.1:5 - "POST /generate HTTP/1.1" 200 OK',
    logged("received.openai", obj={"text": "fine"}),
    logged("received", rid="7", obj={"text": "fine"}),
    logged("finished", rid="7", obj={}, out={"text": TEXT, "output_ids": LOOP}),
    logged("finished", rid="7", obj={"text": "fine"}, out={"text": TEXT}),
    logged("finished", rid="HEALTH_CHECK_1", obj={}, out={"text": "a"}),
    logged("finished", rid="7", obj={}, out={"embedding": [0.1]}),
    logged("finished", rid="7", obj={}, out={"text": CUT}),
]


def test_the_log_of_a_server(report: Report) -> None:
    data = ("\n".join(LOG) + "\n").encode()
    found = report(data, name="server.log")
    assert found["outputs"] == found["outputs_with_a_loop"] == 3
    assert found["outputs_cut_short"] == 1


@pytest.mark.parametrize("text", ["\U0001f60a" * 20, "ha" * 150, "\n" * 300, "'\"\\" * 100])
def test_texts_in_logs_are_searched_by_characters_too(report: Report, text: str) -> None:
    found = report(logged("finished", rid="7", out={"text": f"fine {text}"}))
    assert found["outputs"] == found["outputs_with_a_loop"] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{NOW}Server is ready", "holds no output"),
        (f"{NOW}Finish: obj=GenerateReqInput(rid='7'), out={{}}", "--log-requests-format json"),
        (logged("finished", out={"meta_info": {}}), "level 3"),
        (logged("finished"), "level 3"),
        (logged("finished", out=5), "level 3"),
        (logged("finished", out={"output_ids": [*[1] * 1024, "...", *[1] * 1024]}), "level 3"),
        (logged("finished", out={"text": "a"})[:-9], "line 2 is no JSON"),
        (logged("finished", a="")[:-3] + '{"a":' * 100_000, "line 2 is nested too deeply"),
    ],
    ids=range(8),
)
def test_a_log_without_outputs_gives_no_verdict(said: Said, line: str, message: str) -> None:
    assert message in said(f"{NOW}a\n{line}\n", status=2)


def test_a_log_with_truncated_outputs_gives_no_all_clear(said: Said) -> None:
    cut = "".join(f"{n} " for n in range(999))[:1024]
    told = said(logged("finished", rid="7", out={"text": f"{cut}...{cut}"}))
    assert "needed" not in told
    assert "--log-requests-level 3" in told
