"""A headless Chromium for tests, driven over its debugging protocol."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Page:
    """One page. problems: exceptions and errors of its console."""

    def __init__(self, socket: Any, session: str) -> None:
        self._socket, self._session = socket, session
        self._numbers = itertools.count(1000)
        self.problems: list[str] = []

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the debugging protocol. Returns its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=20))
            level = answer.get("params", {}).get("entry", {}).get("level")
            if answer.get("method") == "Runtime.exceptionThrown" or level == "error":
                self.problems.append(json.dumps(answer["params"]))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, script: str, seconds: float = 15.0) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < until, f"{script}: {self.run('document.body.innerText')} {self.problems}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def resize(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the window, and `light` or `dark`."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def opened(url: str) -> Iterator[Page]:
    """A page with this address in a new browser."""
    with tempfile.TemporaryDirectory(prefix="chromium_", ignore_cleanup_errors=True) as folder:
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stderr
                lines = iter(process.stderr.readline, "")
                address = next(found[1] for line in lines if (found := re.search(r"listening on (ws://\S+)", line)))
                with connect(address, max_size=None, compression=None) as socket:
                    browser = Page(socket, "")
                    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
                    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
                    page = Page(socket, session)
                    for domain in ("Runtime", "Log", "Page"):
                        page.call(f"{domain}.enable")
                    page.call("Page.navigate", url=url)
                    yield page
                    browser.call("Browser.close")
                    process.wait(20)
            finally:
                process.kill()
