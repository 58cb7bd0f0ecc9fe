"""A real Chromium, driven over a pipe in its own protocol: nothing needs to be installed beside it."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_START = "import os, sys; a, b, *w = sys.argv[1:]; os.dup2(int(a), 3); os.dup2(int(b), 4); os.execv(w[0], w)"


class Browser:
    """One page of a headless browser; `requests` lists every address it asked for."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        commands, ours = os.pipe()
        answers, theirs = os.pipe()
        # The browser listens on descriptor 3 and answers on 4. A small process puts the pipes there first,
        # from numbers that are out of the way.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (commands, theirs)]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _START, *map(str, high)),
                *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"),
            ],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (commands, theirs, *high):
            os.close(fd)
        self._out, self._in = ours, os.fdopen(answers, "rb")
        self._numbers, self._rest, self._session = itertools.count(1), b"", ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.downloads = folder / "downloads"
        self.downloads.mkdir()
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """One command and its answer; what the page does meanwhile is noted."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._read()
            if heard.get("id") == number:
                assert "error" not in heard, heard
                return heard["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in.fileno(), 1 << 20)
            assert part, "the browser has gone"
            self._rest += part
        one, _, self._rest = self._rest.partition(b"\0")
        heard = json.loads(one)
        values = heard.get("params", {})
        if heard.get("method") == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif heard.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(values["exceptionDetails"]))
        elif heard.get("method") == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(values["entry"]["text"])
        return heard

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(lambda: self.run("document.readyState") == "complete")

    def run(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def click(self, selector: str) -> None:
        box = self.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({_find(selector)})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def screen(self, width: int, height: int, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def wait(self, ready: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.05)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._out)
        self._in.close()


def _find(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
