"""Headless Chromium, driven by its DevTools protocol over a pipe, which needs no other library.

See https://chromedevtools.github.io/devtools-protocol/.
"""

import base64
import json
import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


def executable():
    """The path of Chromium or Chrome; None if there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """A browser with one tab, which is ended at the end of a `with` block.

    Args:
        folder: for its profile.
    """

    def __init__(self, folder):
        to_browser, from_browser = os.pipe(), os.pipe()
        # Chromium reads commands from descriptor 3, and writes to descriptor 4.
        script = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        arguments = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", executable(), *arguments],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        self._commands, self._answers = os.fdopen(to_browser[1], "wb", 0), os.fdopen(from_browser[0], "rb")
        self._number, self._session = 0, None
        self.events = []

    def __enter__(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error):
        self._commands.close()  # it ends when nobody can command it
        self._answers.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method, **parameters):
        """Sends a command; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {} if self._session is None else {"sessionId": self._session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path):
        """Opens a file, and waits until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while all(event["method"] != "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def show_as(self, *, width, theme, height=900):
        """Sets the width in pixels, and "light" or "dark"."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def value(self, expression):
        """The value of a JavaScript expression; of a promise, what it resolves to."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self):
        """The window as a PNG file's content."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def said(self):
        """What the page wrote to the console, its errors, and what the browser says about it."""
        methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event["method"] in methods]

    def requested(self):
        """The addresses that the page requested, without data that it contains itself."""
        sent = [event["params"]["request"]["url"] for event in self.events if event["method"].endswith("BeSent")]
        return [url for url in sent if not url.startswith("data:")]

    def _read(self):
        message = bytearray()
        while (byte := self._answers.read(1)) not in (b"\0", b""):
            message += byte
        if not message:
            raise EOFError("Chromium has ended.")
        return json.loads(message)
