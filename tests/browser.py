"""A headless Chromium, driven over a pipe with the DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

SECONDS = 60.0


class Browser:
    """One page in a browser of its own; use it in a `with` statement."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [program, "--headless=new", "--remote-debugging-pipe", "--disable-gpu"]
        command += ["--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking"]
        command += [f"--user-data-dir={self._folder.name}", "about:blank"]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")

        def place() -> None:  # the browser reads from 3 and writes to 4
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            command,
            preexec_fn=place,  # noqa: PLW1509
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.messages: list[dict[str, Any]] = []
        """Events: what the console printed, and what failed."""
        targets = self._call("Target.getTargets", None)["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attach = {"targetId": target, "flatten": True}
        self._session: str = self._call("Target.attachToTarget", attach, None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol on the page."""
        return self._call(method, params, self._session)

    def open(self, url: str) -> None:
        """Open a page and wait until its script says that it is ready."""
        self.call("Page.navigate", url=url)
        self.wait("document.querySelector('html[data-ready]')")

    def run(self, script: str) -> Any:
        """The value of an expression on the page, awaited if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression on the page is true."""
        deadline = time.monotonic() + SECONDS
        while not self.run(f"!!({condition})"):
            assert time.monotonic() < deadline, f"not in time: {condition}"
            time.sleep(0.05)

    def resize(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the window in pixels and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, *, is_whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def _call(self, method: str, params: Any, session: str | None = None) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.messages.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], SECONDS)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 2**20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
