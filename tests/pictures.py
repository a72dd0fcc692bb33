"""Takes the pictures of the playground in docs/pictures, beside a server of `scripts/serve --demo`.

    PYTHONPATH=python:tests:. .venv/cpu/bin/python tests/pictures.py

It needs Debian's chromium. The first picture shows the recorded session.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.http_client import answers
from bench.processes import Background, free_port
from browser import Browser

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
TABLE = "| name | state |\n" + "| worker | ready |\n" * 12 + "| worker | failed |\n"
LOG = [{"text": "It works. " * 12}, {"text": "That is all that there is to say, and so " * 30}]
CHOOSE = """(() => {
  const span = document.querySelector('#column-lz .output .turn'), output = span.closest('.output');
  span.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
  const away = span.getBoundingClientRect().top - output.getBoundingClientRect().top;
  const top = output.scrollTop + away - 400;
  for (const one of document.querySelectorAll('.output')) one.scrollTop = top;
  scrollTo(0, 320);
})()"""


@contextmanager
def playground(page: Browser, *arguments: str) -> Iterator[None]:
    """Open the page of a playground."""
    port = free_port()
    address = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "sglang_lz", "playground", "--port", str(port), *arguments]
    with Background(command) as running:
        running.wait_until(lambda: answers(address), 60)
        page.open(address)
        yield


def main() -> None:
    """Take them."""
    with Browser("chromium") as page:
        page.resize(1280, 1240)
        with playground(page, "--server", f"http://127.0.0.1:{free_port()}"):
            page.run(CHOOSE)
            page.screenshot(PICTURES / "compare.png")
        with playground(page):
            take_texts(page)


def take_texts(page: Browser) -> None:
    """Those of a text and of a log."""
    page.resize(1280, 960, "dark")
    page.run("document.getElementById('tab-text').click()")
    page.run(f"document.getElementById('own').value = {json.dumps(TABLE)}")
    page.run("document.getElementById('explain').click()")
    page.wait("document.getElementById('explained').textContent.startsWith('Tokens')")
    lowered = "document.querySelector('#column-own .output :is(.h1, .h2, .h3, .h4, .h5, .h6)')"
    page.run(f"{lowered}?.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))")
    page.screenshot(PICTURES / "text.png")
    page.resize(420, 1240)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("\n".join(map(json.dumps, LOG)))
        file.flush()
        page.run("document.getElementById('tab-log').click()")
        root = page.call("DOM.getDocument")["root"]["nodeId"]
        node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        page.call("DOM.setFileInputFiles", nodeId=node, files=[file.name])
        page.wait("document.getElementById('place').textContent.startsWith('1 of')")
    page.run("document.querySelector('#column-past .output').focus()")
    for _ in range(120):
        page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    page.screenshot(PICTURES / "log.png")


if __name__ == "__main__":
    main()
