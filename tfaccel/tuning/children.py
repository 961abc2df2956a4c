"""The processes of a search, as its parent sees them: started, listened to, ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_GRACE_SECONDS = 5.0
_SHOWN_CHARACTERS = 2000

# A child, and its message; None when it has ended.
Inbox = queue.Queue[tuple["Child", dict[str, Any] | None]]


class Child:
    """A process that sends messages.

    Args:
        command: program and arguments.
        environment: what to add to this process's environment; None removes a name.
        log: a file to which its standard error is added.
        inbox: where its messages go.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str | None], log: Path, inbox: Inbox) -> None:
        variables = {**os.environ, **environment}
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                list(command), env={name: value for name, value in variables.items() if value is not None},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
            )  # fmt: skip
        self._inbox = inbox
        self._reader = threading.Thread(target=self._read, name=f"messages of {log.stem}", daemon=True)
        self._reader.start()

    def send(self, **message: Any) -> None:
        """Sends a message; one that has ended hears nothing."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            if self.process.stdin is not None:
                self.process.stdin.write(json.dumps(message) + "\n")
                self.process.stdin.flush()

    def end(self, *, at_once: bool = False) -> None:
        """Ends it and all that it has started: its standard input first, unless at once, then by force."""
        if not at_once:
            with contextlib.suppress(BrokenPipeError):
                if self.process.stdin is not None:
                    self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(_GRACE_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def how_it_ended(self) -> str:
        """Such as "was killed by SIGKILL", of a process that has ended."""
        status = self.process.wait()
        if status >= 0:
            return f"ended with status {status}"
        return f"was killed by {signal.Signals(-status).name}"

    def end_of_log(self) -> str:
        """The last of what it has written to standard error."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return text[-_SHOWN_CHARACTERS:].strip()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            with contextlib.suppress(json.JSONDecodeError):
                self._inbox.put((self, json.loads(line)))
        self._inbox.put((self, None))
