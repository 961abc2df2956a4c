"""A tfaccel server in a child process, for measurements."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import psutil

from tfaccel.errors import ServeError
from tfaccel.processes.child import Child

_READY = re.compile(r"Serving (\S+) .* at http://[^/]*:(\d+)/")
_STOP_SECONDS = 60.0
_LOAD_SECONDS, _POLL_SECONDS = 120.0, 0.1


class ServedModel:
    """A context in which `tfaccel serve` runs in a child process.

    Args:
        folder: a folder of versions to serve.
        flags: further flags of the command.

    Attributes:
        name: the name of the model in URLs.
        port: the port of the server.

    Raises:
        ServeError: on entry, if the server does not start.
    """

    name: str
    port: int

    def __init__(self, folder: Path, *flags: str) -> None:
        self._arguments = [f"--model={folder}", "--port=0", *flags]

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tfaccel.scripts.serve", *self._arguments]
        self._child = Child(command, environment={"TF_CPP_MIN_LOG_LEVEL": "2"}, pipes=("stdout",))
        try:
            stdout = self._child.process.stdout
            found = _READY.match(stdout.readline() if stdout is not None else "")
        except BaseException:
            self._child.end()
            raise
        if found is None:
            self._child.kill(grace_seconds=_STOP_SECONDS)
            text = " ".join(self._child.output().split())[-400:]
            self._child.close()
            raise ServeError(f"The server did not start: {text}")
        self.name, self.port = found[1], int(found[2])
        return self

    def __exit__(self, *error: object) -> None:
        self._child.end(grace_seconds=_STOP_SECONDS)

    def get(self, path: str = "") -> Any:
        """The JSON that the server answers for a path of the model, such as "/metadata"; its versions without one."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models/{self.name}{path}") as answer:
            return json.load(answer)

    def versions(self) -> list[int]:
        """The versions that it serves, in ascending order."""
        states = self.get()["model_version_status"]
        return sorted(int(state["version"]) for state in states if state["state"] == "AVAILABLE")

    def wait_for(self, versions: list[int]) -> None:
        """Waits until exactly these versions are served.

        Raises:
            ServeError: after two minutes.
        """
        deadline = time.monotonic() + _LOAD_SECONDS
        while (found := self.versions()) != versions:
            if time.monotonic() > deadline:
                raise ServeError(f"Not served after {_LOAD_SECONDS:g} s: versions {versions}, but {found}.")
            time.sleep(_POLL_SECONDS)

    def resident_bytes(self) -> int:
        """The resident memory of its process."""
        return int(psutil.Process(self._child.process.pid).memory_info().rss)
