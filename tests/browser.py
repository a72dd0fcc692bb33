"""Chromium without a window, over the pipe of its DevTools protocol: no library, no port."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _tools import PAGE_TOOLS, find

QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--headless",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-sandbox",
    "--remote-debugging-pipe",
]


class Page:
    """The one page of a browser.

    Attributes:
        requests: the URLs that it has asked for.
        complaints: what it has logged, of any level, and the exceptions of its scripts.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._commands = commands
        self._answers = os.fdopen(answers, "rb")
        self._unread = b""
        self._calls = 0
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._calls:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def open(self, file: Path, width: int, scheme: str) -> None:
        """Load a local file in a window of `width` CSS pixels; `scheme` is "light" or "dark"."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=file.as_uri())
        while (event := self._next()).get("method") != "Page.loadEventFired":
            self._note(event)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            read = os.read(self._answers.fileno(), 1 << 16)
            assert read, "chromium has ended"
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            case "Log.entryAdded" | "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(event["params"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with its profile in an empty folder; ended at the end."""
    program = find(*PAGE_TOOLS.programs)
    assert program
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    # The protocol's descriptors are 3 and 4.
    command = ["bash", "-c", f'exec "$@" 3<&{read_commands} 4>&{write_answers}', "bash"]
    command += [program, *QUIET, f"--user-data-dir={profile}", "about:blank"]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, pass_fds=(read_commands, write_answers))
    os.close(read_commands)
    os.close(write_answers)
    try:
        page = Page(commands, answers)
        yield page
        page._session = {}
        page.call("Browser.close")
        process.wait(120)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
