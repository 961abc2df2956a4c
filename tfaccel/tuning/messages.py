"""A process's line to the search that it belongs to: JSON, one message a line, over a socket in a folder."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from pathlib import Path
from typing import Any

SOCKET = "search.sock"


class ParentLine:
    """The line; when it ends, that is with the search, the process ends at once.

    Args:
        folder: where the search's socket stands.
        name: what the search calls this process.
    """

    def __init__(self, folder: Path, name: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(folder / SOCKET))
        self._file = connection.makefile("rw", encoding="utf-8")
        self._connection = connection
        self._lock = threading.Lock()
        self.received: queue.Queue[dict[str, Any]] = queue.Queue()
        self.send("hello", name=name)
        threading.Thread(target=self._listen, name="messages", daemon=True).start()

    def send(self, event: str, **content: Any) -> None:
        """Sends a message."""
        with self._lock:
            self._connection.sendall((json.dumps({"event": event, **content}) + "\n").encode())

    def _listen(self) -> None:
        for line in self._file:
            self.received.put(json.loads(line))
        os._exit(1)
