"""The processes of a search, as the search sees them: made by its nursery, listened to, ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfaccel.tuning.messages import SOCKET

NURSERY = "tfaccel.tuning.nursery_program"
_GRACE_SECONDS = 5.0
_SHOWN_CHARACTERS = 2000

# A child, and its message; None when it has ended.
Inbox = queue.Queue[tuple["Child", dict[str, Any] | None]]


class Child:
    """A process of a search.

    Args:
        name: what the nursery calls it.
        log: the file to which its output goes.
        inbox: where its messages go.

    Attributes:
        status: its exit status, negative for a signal; None while it runs.
    """

    def __init__(self, name: str, log: Path, inbox: Inbox) -> None:
        self.name = name
        self.log = log
        self.status: int | None = None
        self._inbox = inbox
        self._pid: int | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self._connection: socket.socket | None = None
        self._unsent: list[bytes] = []
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        """Sends a message; one that has ended hears nothing."""
        data = (json.dumps(message) + "\n").encode()
        with self._lock, contextlib.suppress(OSError):
            if self._connection is None:
                self._unsent.append(data)
            else:
                self._connection.sendall(data)

    def kill(self) -> None:
        """Kills it, and all that it has started."""
        if self._started.wait(_GRACE_SECONDS) and not self._ended.is_set() and self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        self._ended.wait(_GRACE_SECONDS)

    def how_it_ended(self) -> str:
        """Such as "was killed by SIGKILL", of a process that has ended."""
        status = self.status or 0
        if status >= 0:
            return f"ended with status {status}"
        return f"was killed by {signal.Signals(-status).name}"

    def end_of_log(self) -> str:
        """The last of what it has written."""
        return _end_of(self.log)

    def listen(self, connection: socket.socket, lines: Any) -> None:
        """Takes messages from a connection until it ends, and says so when the process has ended too."""
        with self._lock:
            self._connection = connection
            for data in self._unsent:
                connection.sendall(data)
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._inbox.put((self, json.loads(line)))
        self._ended.wait()
        with self._lock:
            lines.close()
            connection.close()
        self._inbox.put((self, None))

    def has_started(self, pid: int) -> None:
        """Told by the nursery."""
        self._pid = pid
        self._started.set()

    def has_ended(self, status: int) -> None:
        """Told by the nursery; what it had said before it ended is heard first."""
        self.status = status
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what it has started itself
            if self._pid is not None:
                os.killpg(self._pid, signal.SIGKILL)
        self._started.set()
        self._ended.set()
        if self._connection is None:
            self._inbox.put((self, None))


class Nursery:
    """Makes the processes of a search; see `nursery_program`.

    Args:
        folder: a folder of this user's alone, with a short path.
        inbox: where messages of all processes go.
    """

    def __init__(self, folder: Path, inbox: Inbox) -> None:
        self._folder = folder
        self._inbox = inbox
        self._children: dict[str, Child] = {}
        self._count = 0
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        with (folder / "nursery.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", NURSERY, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**{k: v for k, v in os.environ.items() if k != "TF_CONFIG"}, "KERAS_BACKEND": "tensorflow"},
                text=True, start_new_session=True,
            )  # fmt: skip
        self._run(self._hear_nursery)
        self._run(self._accept)

    def start(self, kind: str, program: str, arguments: list[str], environment: Mapping[str, str]) -> Child:
        """Starts a program.

        Args:
            kind: a name for its log, such as "worker-0".
            program: the module; its `main(folder, name, arguments)` is called.
            arguments: as said.
            environment: what to add to the environment.
        """
        self._count += 1
        child = Child(f"{kind}.{self._count}", self._folder / f"{kind}.log", self._inbox)
        self._children[child.name] = child
        order = {"name": child.name, "program": program, "arguments": arguments, "environment": dict(environment),
                 "log": str(child.log)}  # fmt: skip
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
        return child

    def end_of_log(self, child: Child) -> str:
        """The last of what a child has written, or the nursery where it has written nothing."""
        return child.end_of_log() or _end_of(self._folder / "nursery.log")

    def close(self) -> None:
        """Ends all processes."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:  # it is still loading
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(_GRACE_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _run(self, function: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, name=function.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _hear_nursery(self) -> None:
        for line in self._process.stdout or ():
            message = json.loads(line)
            child = self._children[message["name"]]
            if message["event"] == "started":
                child.has_started(message["pid"])
            else:
                child.has_ended(message["status"])
        for child in list(self._children.values()):  # the nursery is gone, and nobody can tell of them any more
            if child.status is None:
                child.has_ended(-signal.SIGKILL)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            lines = connection.makefile("r", encoding="utf-8")
            child = self._children.get(json.loads(lines.readline() or "{}").get("name", ""))
            if child is None:
                connection.close()
            else:
                self._run(child.listen, connection, lines)


def _end_of(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return text[-_SHOWN_CHARACTERS:].strip()
