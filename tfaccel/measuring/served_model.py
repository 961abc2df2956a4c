"""A server of tfaccel in a process of its own, to be measured."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tfaccel.errors import ServeError

_READY = re.compile(r"Serving (\S+) .* at http://[^/]*:(\d+)/")
_STOP_SECONDS = 60.0


class ServedModel:
    """A context in which `tfaccel serve` runs in a process of its own.

    Arguments:
        folder: what is served: a folder of versions.
        flags: more flags of the command.

    Attributes:
        name: of the model in addresses.
        port: that it listens on.

    Raises:
        ServeError: when entered, if the server does not start.
    """

    name: str
    port: int

    def __init__(self, folder: Path, *flags: str) -> None:
        self._arguments = [f"--model={folder}", "--port=0", *flags]
        self._process: subprocess.Popen[str] | None = None
        self._files = contextlib.ExitStack()

    def __enter__(self) -> Self:
        log = self._files.enter_context(tempfile.TemporaryFile("w+"))
        command = [sys.executable, "-m", "tfaccel.scripts.serve", *self._arguments]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        found = _READY.match(line)
        if found is None:
            self._stop()
            log.seek(0)
            text = " ".join(log.read().split())[-400:]
            self._files.close()
            raise ServeError(f"The server did not start: {text}")
        self.name, self.port = found[1], int(found[2])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:  # fmt: skip
        self._stop()
        self._files.close()

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
