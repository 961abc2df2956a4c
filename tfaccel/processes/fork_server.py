"""Processes that start at once: forks of a server that has already loaded its libraries.

`multiprocessing`'s own fork server does not serve here: a process has only one, with the environment and working
directory of its first use, its output goes to the terminal, and each child imports the user's main module again.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tfaccel.processes.child import Child, Environment, how_it_ended

_PROGRAM = "tfaccel.processes.fork_server_program"
_GRACE_SECONDS = 5.0
_SHOWN_CHARACTERS = 2000
_MAX_MESSAGE_LENGTH = 2**16


class ForkedChild:
    """A process made by a `ForkServer`.

    Attributes:
        name: of the process, as `ps` shows it.
        status: its exit status, negative for a signal; None while it runs.
        log: the file to which its output goes.
    """

    def __init__(self, name: str, log: Path, connection: Connection) -> None:
        self.name = name
        self.log = log
        self.status: int | None = None
        self.connection: Connection | None = connection

    def send(self, message: Any) -> None:
        """Sends an object; ignored if the process has ended."""
        if self.connection is not None:
            with contextlib.suppress(ConnectionError):
                self.connection.send(message)

    def how_it_ended(self) -> str:
        """See `tfaccel.processes.child.how_it_ended`."""
        return how_it_ended(self.status or 0)

    def hang_up(self) -> None:
        """Closes the connection; a process that still runs ends."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class ForkServer:
    """Forks processes; see `fork_server_program`.

    Args:
        preload: modules loaded once, for all processes.
        folder: folder for logs.
        environment: what to add to the environment; None removes a name.
        left_out: modules that cannot be imported while those of `preload` are loaded, but afterwards.
    """

    def __init__(
        self,
        preload: Sequence[str],
        *,
        folder: Path,
        environment: Environment | None = None,
        left_out: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._log = folder / "fork_server.log"
        self._children: dict[str, ForkedChild] = {}
        self._count = 0
        self._unread: deque[tuple[ForkedChild, Any]] = deque()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", _PROGRAM, str(number), *preload, *(f"-{name}" for name in left_out)]
            self._server = Child(command, environment=environment, pass_fds=[number], log=self._log)

    def start(self, kind: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkedChild:
        """Starts a process.

        Args:
            kind: a name for its log, such as "worker-0".
            module: its `main(connection, arguments)` is called; the connection's other end is `ForkedChild.send` and
                `next_message`.
            arguments: passed to `main`.
            environment: what to add to the environment of the server.
        """
        self._count += 1
        ours, theirs = multiprocessing.Pipe()
        child = ForkedChild(f"{kind}.{self._count}", self._folder / f"{kind}.log", ours)
        self._children[child.name] = child
        order = {
            "name": child.name,
            "module": module,
            "arguments": list(arguments),
            "log": str(child.log),
            "environment": dict(environment),
        }
        with theirs, contextlib.suppress(ConnectionError):  # `next_message` reports that the server has ended
            socket.send_fds(self._socket, [json.dumps(order).encode()], [theirs.fileno()])
        return child

    @property
    def running(self) -> bool:
        """Whether the server runs; its processes end with it."""
        return self._server.process.poll() is None

    def kill(self, child: ForkedChild) -> None:
        """Kills a process, and all that it has started."""
        with contextlib.suppress(ConnectionError):
            self._socket.send(json.dumps({"kill": child.name}).encode())

    def next_message(self, time_limit_seconds: float) -> tuple[ForkedChild | None, Any]:
        """The next message of any process, or None as its last when it has ended; (None, None) if none arrives."""
        if not self._unread:
            self._read(time_limit_seconds)
        return self._unread.popleft() if self._unread else (None, None)

    def get_message(self, child: ForkedChild, time_limit_seconds: float) -> Any:
        """The next message of one process, or None when it has ended; those of others are kept for later."""
        deadline = time.monotonic() + time_limit_seconds
        while True:
            for place, (sender, message) in enumerate(self._unread):
                if sender is child:
                    del self._unread[place]
                    return message
            if child.status is not None:
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._read(left)

    def _read(self, time_limit_seconds: float) -> None:
        """Reads what arrives next."""
        connections = {child.connection: child for child in self._children.values() if child.connection}
        sources: list[Any] = [*connections, *([self._socket] if self._children else [])]
        for source in wait(sources, time_limit_seconds):
            if source is self._socket:
                self._read_server()
            else:
                self._read_child(connections[source])  # type: ignore[index]

    def end_of_log(self, child: ForkedChild) -> str:
        """The end of a process's log, or of the server's if that is empty."""
        return _get_end(child.log) or _get_end(self._log)

    def close(self) -> None:
        """Ends all processes."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it is still loading
            self._server.process.wait(_GRACE_SECONDS)
        self._server.end()
        for child in self._children.values():
            child.hang_up()

    def _read_child(self, child: ForkedChild) -> None:
        try:
            if child.connection is not None:
                self._unread.append((child, child.connection.recv()))
        except (EOFError, OSError):  # OSError: it died in the middle of a message
            child.hang_up()

    def _read_server(self) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self._socket.recv(_MAX_MESSAGE_LENGTH)
        if data:
            ended = json.loads(data)
            self._has_ended(self._children[ended["name"]], ended["status"])
        else:  # nobody can tell of them any more, so they are ended
            status = -signal.SIGKILL
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._server.process.wait(_GRACE_SECONDS) or status
            for child in list(self._children.values()):
                self._has_ended(child, status)

    def _has_ended(self, child: ForkedChild, status: int) -> None:
        child.status = status
        while child.connection is not None and child.connection.poll():
            self._read_child(child)
        child.hang_up()
        del self._children[child.name]
        self._unread.append((child, None))


def _get_end(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return text[-_SHOWN_CHARACTERS:].strip()
