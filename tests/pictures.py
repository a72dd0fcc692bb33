"""Records the playground's session and takes its pictures in docs/pictures.

    scripts/serve
    PYTHONPATH=python:tests:. .venv/cpu/bin/python tests/pictures.py

It needs Debian's chromium. The first picture shows the recorded session.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.http_client import HTTP, answers
from bench.processes import Background, free_port
from browser import Browser
from sglang_lz.playground.app import PAGE

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
TABLE = "| name | state |\n" + "| worker | ready |\n" * 12 + "| worker | failed |\n"
CHOOSE = """(() => {
  const span = document.querySelector('#column-lz .output .turn'), output = span.closest('.output');
  span.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
  const away = span.getBoundingClientRect().top - output.getBoundingClientRect().top;
  const top = output.scrollTop + away - 400;
  for (const one of document.querySelectorAll('.output')) one.scrollTop = top;
  scrollTo(0, 320);
})()"""


@contextmanager
def playground(page: Browser, *arguments: str) -> Iterator[str]:
    """Open the page of a playground; its address."""
    port = free_port()
    address = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "sglang_lz", "playground", "--port", str(port), *arguments]
    with Background(command) as running:
        running.wait_until(lambda: answers(address), 60)
        page.open(address)
        yield address


def main() -> None:
    """Take them."""
    with Browser("chromium") as page:
        with playground(page) as address:
            session = json.dumps(recorded(page, address))
            short = json.loads(session, parse_float=lambda x: round(float(x), 4))
            text = json.dumps(short, ensure_ascii=False, separators=(",", ":"))
            (PAGE / "session.json").write_text(text + "\n")
            take_text(page)
        page.resize(1280, 1240)
        with playground(page, "--server", f"http://127.0.0.1:{free_port()}"):
            page.run(CHOOSE)
            page.screenshot(PICTURES / "compare.png")


def recorded(page: Browser, address: str) -> dict[str, Any]:
    """The first example in all three columns, with the values that the page starts with."""
    fields = HTTP.get(f"{address}api/fields").json()
    known = fields["known"][0]
    settings = {
        "prompt": page.run("document.getElementById('prompt').value"),
        "chat": True,
        "known": known["name"],
        "known_value": known["value"],
        "fields": {field["name"]: field["value"] for field in fields["lz"]},
        **{field["name"]: field["value"] for field in fields["sampling"]},
    }
    columns = {}
    for column in ("none", "known", "lz"):
        answer = HTTP.post(f"{address}api/generate", json={**settings, "column": column})
        events = answer.text.split("\n\n")[:-1]
        columns[column] = [json.loads(event.removeprefix("data: ")) for event in events]
        assert "end" in columns[column][-1], columns[column][-1]
    return {"settings": settings, "columns": columns}


def take_text(page: Browser) -> None:
    """That of a text."""
    page.resize(1280, 960, "dark")
    page.run("document.getElementById('tab-text').click()")
    page.run(f"document.getElementById('own').value = {json.dumps(TABLE)}")
    page.run("document.getElementById('explain').click()")
    page.wait("document.getElementById('explained').textContent.startsWith('Tokens')")
    lowered = "document.querySelector('#column-own .output :is(.h1, .h2, .h3, .h4, .h5, .h6)')"
    page.run(f"{lowered}?.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))")
    page.screenshot(PICTURES / "text.png")


if __name__ == "__main__":
    main()
