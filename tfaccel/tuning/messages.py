"""Messages between a search and its processes: JSON, one a line, on standard input and output."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any


class ParentLine:
    """A child's line to the process that started it.

    Standard output is the child's for messages alone; whatever else is printed goes to standard error. When standard
    input ends, that is with the parent, the child ends at once.
    """

    def __init__(self) -> None:
        self._output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._lock = threading.Lock()
        self.received: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, name="messages", daemon=True).start()

    def send(self, event: str, **content: Any) -> None:
        """Sends a message."""
        with self._lock:
            self._output.write(json.dumps({"event": event, **content}) + "\n")
            self._output.flush()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.received.put(json.loads(line))
        os._exit(1)
