"""A real browser for tests: headless Chromium, driven through its DevTools protocol over a WebSocket.

It has a profile of its own and may load nothing but what it is told to open.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
START = 60.0
"""Seconds that the browser may take to start."""


def find_browser() -> str:
    """The browser's program; skips the test where there is none. A CI that is root installs Debian's."""
    found = _found()
    if found is None and os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
        with open(Path(tempfile.gettempdir()) / "pillarbox-browser.lock", "w") as lock:
            # Tests in several processes want it at once.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _found() is None:
                for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
                    subprocess.run(["apt-get", "-q", *words], capture_output=True, timeout=150, check=False)
        found = _found()
    if found is None:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    return found


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A page that was opened. `errors` and `requests` are what it said and asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and give its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self._receive()
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def wait_for(self, event: str) -> None:
        """Wait until the browser says `event`."""
        while (await self._receive()).get("method") != event:
            pass

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json(timeout=60)
        said = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded":
                self.errors.append(str(said))
            case "Network.requestWillBeSent":
                self.requests.append(said["request"]["url"])
        return message

    async def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Have a window of that many pixels, in light or dark mode."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def move_pointer(self, x: float, y: float) -> None:
        """Move the pointer to a place in the window."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def screenshot(self, *, whole: bool = True) -> bytes:
        """The whole page, or what the window shows, as PNG."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])


class Browser:
    """Headless Chromium while its `async with` block runs."""

    def __init__(self) -> None:
        self._program = find_browser()
        self._folder = tempfile.mkdtemp(prefix="pillarbox-browser-")
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Browser:
        self._process = await asyncio.create_subprocess_exec(
            self._program,
            *FLAGS,
            f"--user-data-dir={self._folder}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": self._folder},
        )
        self._session = aiohttp.ClientSession()
        self._address = await asyncio.wait_for(self._listening(), START)
        # It would stop when nobody reads what it says.
        assert self._process.stderr is not None
        self._reading = asyncio.create_task(self._process.stderr.read())
        return self

    async def _listening(self) -> str:
        assert self._process is not None and self._process.stderr is not None
        while line := (await self._process.stderr.readline()).decode("utf-8", "replace"):
            if "DevTools listening on ws://" in line:
                return line.rpartition("ws://")[2].partition("/")[0]
        raise AssertionError("the browser has ended")

    async def open(self, url: str, width: int, height: int, *, dark: bool = False) -> Page:
        """A new page that has loaded `url`, in a window of that size."""
        assert self._session is not None
        async with self._session.put(f"http://{self._address}/json/new?about:blank") as answer:
            target = await answer.json()
        socket = await self._session.ws_connect(
            target["webSocketDebuggerUrl"], max_msg_size=0, heartbeat=None
        )
        page = Page(socket)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.resize(width, height, dark=dark)
        await page.call("Page.navigate", url=url)
        await page.wait_for("Page.loadEventFired")
        return page

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None and self._session is not None
        await self._session.close()
        if self._process.returncode is None:
            self._process.terminate()
        await self._reading
        await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
