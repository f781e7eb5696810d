"""A headless Chromium, driven by the DevTools protocol over a pair of pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 300
START = """
import fcntl, os, sys
found = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, wanted in zip(found, (3, 4)):
    os.dup2(number, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads commands from file 3 and writes answers to file 4."""


def find_browser():
    """Path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One page of a browser of its own; `messages` are what its console and its log said, errors among them."""

    def __init__(self, browser, profile, url, *, is_dark=False, size=(1300, 700)):
        command_end, self._to = os.pipe()
        self._from, answer_end = os.pipe()
        arguments = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(command_end), str(answer_end), *arguments],
            pass_fds=(command_end, answer_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_end)
        os.close(answer_end)
        self._timer = threading.Timer(TIMEOUT_S, self._process.kill)
        self._timer.start()
        self._answers = os.fdopen(self._from, "rb", buffering=0)
        self._rest, self._number, self._session, self.messages, self._events = b"", 0, None, [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        width, height = size
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._read()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        self._answers.close()
        os.close(self._to)

    def send(self, method, **params):
        """The result of a command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            pass
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def evaluate(self, expression):
        """The value of an expression of JavaScript."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def hover(self, x, y):
        """Move the mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _read(self):
        while b"\0" not in self._rest:
            piece = self._answers.read(1 << 16)
            assert piece, "the browser ended"
            self._rest += piece
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        method = message.get("method", "")
        self._events.append(method)
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(message["params"])
        return message
