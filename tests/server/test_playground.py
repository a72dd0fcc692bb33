"""The playground's page in a real browser, on a real server."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import oracle
import system_tools
from _tools import BROWSER_TOOLS, find
from bench.http_client import HTTP, answers
from bench.processes import Background, free_port
from browser import Browser
from lz_penalty.fields.lz import RECOMMENDED
from server.configurations import on
from server.launch import Server, vocab_size
from server.model import numbers

SECONDS = 60
LOOPING, NEW_TOKENS = "List the keywords of the language.", 200
"""A prompt at which the model of the tests repeats a few words."""
MARKUP = '<img src="x" onerror="window.broken = 1"><script>window.broken = 1</script>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    system_tools.require(BROWSER_TOOLS)
    program = find("chromium")
    assert program is not None
    with Browser(program) as running:
        yield running


@contextmanager
def playground(browser: Browser, url: str, log: Path) -> Iterator[str]:
    """The address of a running playground."""
    port = free_port()
    command = [sys.executable, "-m", "sglang_lz", "playground"]
    command += ["--server", url, "--port", str(port)]
    address = f"http://127.0.0.1:{port}/"
    with Background(command, name=address, log=log) as running:
        running.wait_until(lambda: answers(address), SECONDS)
        try:
            yield address
        finally:
            # A page that stays would ask its server again, and complain during the next test.
            browser.call("Page.navigate", url="about:blank")


@pytest.fixture
def page(server: Server, browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    """The page of a playground beside the server."""
    with playground(browser, server.url, tmp_path / "playground.log") as address:
        browser.resize(1400, 900)
        browser.messages.clear()
        browser.open(address)
        yield browser
        assert not complaints(browser)


def complaints(page: Browser) -> list[dict[str, Any]]:
    """What the page's console has shown."""
    methods = ("Log.entryAdded", "Runtime.exceptionThrown")
    return [one for one in page.messages if one.get("method") in methods]


def texts(page: Browser, column: str) -> list[str]:
    found: list[str] = page.run(
        f"[...document.querySelectorAll('#column-{column} .output span')].map(s => s.textContent)"
    )
    return found


def marked(page: Browser, column: str, name: str) -> list[int]:
    found: list[int] = page.run(
        f"[...document.querySelectorAll('#column-{column} .output span')]"
        f".flatMap((s, i) => s.classList.contains({name!r}) ? [i] : [])"
    )
    return found


def point_at(page: Browser, column: str, index: int) -> str:
    """Move the mouse to a token; returns what the page says of it."""
    place: dict[str, float] = page.run(
        f"(() => {{ const s = document.querySelectorAll('#column-{column} .output span')[{index}];"
        " s.scrollIntoView({block: 'center'}); const [r] = s.getClientRects();"
        " return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
    said: str = page.run("document.getElementById('detail').textContent")
    return said


def run_looping_prompt(page: Browser) -> None:
    page.run(
        f"document.getElementById('prompt').value = {json.dumps(LOOPING)};"
        f"document.getElementById('settings').elements.max_new_tokens.value = {NEW_TOKENS};"
        "document.getElementById('run').click()"
    )
    page.wait("document.getElementById('done').textContent === 'Done.'")


def explain(page: Browser, text: str) -> None:
    """Have the page explain a text of its own."""
    page.run("document.getElementById('tab-text').click()")
    page.run(f"document.getElementById('own').value = {json.dumps(text)}")
    page.run("document.getElementById('explain').click()")
    page.wait("document.getElementById('explained').textContent.startsWith('Tokens')")
    assert "".join(texts(page, "own")) == text


def example_ids(server: Server) -> list[int]:
    """The tokens that the server gives for the looping prompt with the penalty."""
    chat = {"messages": [{"role": "user", "content": LOOPING}]}
    prompt = HTTP.post(f"{server.url}/tokenize", json=chat, timeout=SECONDS).json()["tokens"]
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, **RECOMMENDED}
    body = {"input_ids": prompt, "sampling_params": sampling}
    answer = HTTP.post(f"{server.url}/generate", json=body, timeout=SECONDS)
    found: list[int] = answer.json()["output_ids"]
    return found


@on("overlap")
def test_one_click_shows_a_loop_its_end_and_the_reason(server: Server, page: Browser) -> None:
    page.run("document.querySelector('#examples button:last-child').click()")
    page.wait("document.getElementById('done').textContent === 'Done.'")
    assert page.run("document.getElementById('prompt').value").startswith("Write a letter")
    assert texts(page, "lz")
    run_looping_prompt(page)
    outputs = {name: texts(page, name) for name in ("none", "known", "lz")}
    assert all(len(output) > 100 for output in outputs.values())
    assert len(marked(page, "none", "loop")) > 2 * len(marked(page, "known", "loop"))
    ids = example_ids(server)
    assert len(outputs["lz"]) == len(ids)
    turn = marked(page, "lz", "turn")[0]
    assert turn in range(*(marked(page, "lz", "loop")[0], marked(page, "lz", "loop")[-1]))
    copies = oracle.copies(ids[:turn], 512)[4]
    sizes = vocab_size(), 512, 32, "marginal"
    delta = oracle.delta_bits(ids[:turn], *sizes, onset=3, numbers=numbers())
    nats = 0.15 * (math.log2(vocab_size()) - delta[ids[turn - 4]])
    said = point_at(page, "lz", turn)
    assert marked(page, "lz", "copy") == [turn - 4]
    assert f"{outputs['lz'][turn - 4]} would have come first" in said
    assert f"which lost {nats:.2f} nats" in said
    assert f"a copy stands at token {turn - 3}, 4 back" in said
    assert f"a loop that already has {copies} further copies" in said


@on("overlap")
def test_the_copy_of_each_lowered_token_is_the_oracle_s(server: Server, page: Browser) -> None:
    run_looping_prompt(page)
    ids = example_ids(server)
    heat = [i for level in range(1, 7) for i in marked(page, "lz", f"h{level}")]
    memory = oracle.memory_of_steps([], ids, False, 512, 3, numbers=numbers())
    checked = 0
    for i in sorted(set(heat) - set(marked(page, "lz", "turn"))):
        said = point_at(page, "lz", i)
        waits = {"onset": 3, "memory": memory[i], "numbers": numbers()}
        delta = oracle.delta_bits(ids[:i], vocab_size(), 512, 32, "marginal", **waits)
        nats = 0.15 * (math.log2(vocab_size()) - delta[ids[i]])
        assert f"lost {nats:.2f} nats" in said
        (copy,) = marked(page, "lz", "copy")
        assert ids[copy] == ids[i]
        matches = oracle.match_lengths(ids[max(0, i - 512) : i], 32)
        assert f"after a match of {matches[copy - 1]} token" in said
        checked += 1
    assert checked > 3


@on("overlap")
def test_markup_stays_text(server: Server, page: Browser) -> None:
    explain(page, MARKUP)
    assert page.run("document.querySelectorAll('.output img, .output script').length") == 0
    assert page.run("window.broken === undefined")


@pytest.mark.full
@on("overlap")
def test_an_output_is_stopped_and_a_link_keeps_the_settings(server: Server, page: Browser) -> None:
    page.run(
        "document.getElementById('settings').elements.max_new_tokens.value = 1500;"
        "document.getElementById('field-lz_onset').value = 5;"
        "document.getElementById('share').click()"
    )
    page.run("document.getElementById('run').click()")
    page.wait("document.querySelectorAll('#column-lz .output span').length > 8")
    page.run("document.getElementById('stop').click()")
    page.wait("document.getElementById('done').textContent === 'Stopped.'")
    assert len(texts(page, "lz")) < 1500
    link = page.run("location.href")
    page.call("Page.navigate", url="about:blank")
    page.open(link)
    assert page.run("document.getElementById('field-lz_onset').value") == "5"


def test_without_a_server_it_shows_the_recorded_session(browser: Browser, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with playground(browser, nobody, tmp_path / "playground.log") as address:
        browser.open(address)
        state = browser.run("document.getElementById('state').textContent")
        assert "No server answers at" in state
        assert "recorded session" in state
        assert marked(browser, "none", "loop")
        assert marked(browser, "lz", "turn")
