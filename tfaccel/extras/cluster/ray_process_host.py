"""An actor of Ray that forks processes on its node, and the events that it tells of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfaccel.processes.child import Environment
from tfaccel.processes.fork_server import ForkedChild, ForkServer

_LOG_CHARACTERS = 1_000_000

Event = tuple[str, Any, int | None]  # name of the process, message, exit status; a message of None is its last event


class ProcessHost:
    """A fork server on a node of a Ray cluster, which takes orders and tells events.

    Args:
        preload, environment: as for `ForkServer`.
        directory: working directory, if this node has it.
    """

    def __init__(self, preload: Sequence[str], environment: Environment, directory: str) -> None:
        with contextlib.suppress(OSError):
            os.chdir(directory)
        self._folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))
        self._server = ForkServer(preload, folder=self._folder, environment=environment)
        self._children: dict[str, ForkedChild] = {}

    def exchange(self, orders: Sequence[tuple[str, str, Any]], seconds: float) -> list[Event]:
        """Carries out orders, and waits for events.

        Args:
            orders: ("start", name, the arguments of `ForkServer.start`), ("send", name, message) or ("kill", name,
                None).
            seconds: how long to wait for the first event.
        """
        for order, name, content in orders:
            if order == "start":
                self._children[name] = self._server.start(*content)
            elif name in self._children and order == "send":
                self._children[name].send(content)
            elif name in self._children:
                self._server.kill(self._children[name])
        events: list[Event] = []
        deadline = time.monotonic() + seconds
        while not events or time.monotonic() < deadline:
            child, message = self._server.next_message(max(0.0, deadline - time.monotonic()) if not events else 0.0)
            if child is None:
                break
            name = next(name for name, known in self._children.items() if known is child)
            events.append((name, message, child.status))
        return events

    def end_of_log(self, name: str) -> str:
        """The end of a process's log."""
        return self._server.end_of_log(self._children[name])

    def logs(self) -> dict[str, str]:
        """The logs, or their ends, by name."""
        texts = {log.name: log.read_text(encoding="utf-8", errors="replace") for log in self._folder.glob("*.log")}
        return {name: text[-_LOG_CHARACTERS:] for name, text in texts.items()}

    def close(self) -> None:
        """Ends all processes."""
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)
