"""The page and the recorded session in one file, which needs no server.

A page of documentation can show it in an `<iframe>`. Its Content-Security-Policy allows only the
script and the style that are in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from sglang_lz.playground.app import PAGE, SESSION, described

NO_SERVER = (
    "This is a recorded session of SmolLM2-135M-Instruct. To run your own prompts, start "
    "sglang-lz playground."
)


def single_file() -> str:
    """The page as HTML.

    Raises:
        ValueError: the page no longer loads its script and its style as this module expects.
    """
    html = (PAGE / "page.html").read_text()
    style, script = (PAGE / "page.css").read_text(), (PAGE / "page.js").read_text()
    answers: dict[str, Any] = {
        "api/fields": described(),
        "api/server": {"answers": False, "sentence": NO_SERVER},
        "api/session": json.loads(SESSION.read_text()),
    }
    # In JSON, < occurs only within strings, and a string may contain the end tag of a script.
    data = json.dumps(answers, ensure_ascii=False).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        '<meta charset="utf-8">': (
            '<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        ),
        '<link rel="stylesheet" href="page.css">': f"<style>{style}</style>",
        '<script type="module" src="page.js"></script>': (
            f'<script type="application/json" id="recorded">{data}</script>\n'
            f'<script type="module">{script}</script>'
        ),
    }
    for tag, part in parts.items():
        if html.count(tag) != 1:
            raise ValueError(f"page.html must have {tag} once.")
        html = html.replace(tag, part)
    return html


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
