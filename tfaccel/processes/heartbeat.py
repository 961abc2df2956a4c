"""Signs of life of a process that trains, in a file that its launcher reads.

The launcher names the file in `TFACCEL_HEARTBEAT`. A thread writes it once a second, so that a process which is stopped
or hangs with the interpreter locked is noticed: its file grows old.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("tfaccel")

VARIABLE = "TFACCEL_HEARTBEAT"
SECONDS = 1.0
FAILED = "ending after an exception"  # the phase of the last sign of life of a process that raised one
_writer: list[_Writer] = []


@dataclass
class Heartbeat:
    """The last sign of life of a process.

    Attributes:
        step: steps trained so far, those before the run was resumed included; None before the first.
        phase: what it is doing: "starting", "training", "evaluating" or "saving".
        age_seconds: since it was written.
    """

    step: int | None = None
    phase: str = "starting"
    age_seconds: float = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether it is that of a process which raised an exception."""
        return self.phase == FAILED


class _Writer:
    """Writes the heartbeat of this process, from a thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.state = Heartbeat()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _beat(self) -> None:
        try:
            while self.state.phase != FAILED:
                self.write()
                time.sleep(SECONDS)
        except OSError as error:
            logger.warning(f"The heartbeat in {self._file} cannot be written any more: {error}")

    def write(self) -> None:
        """Writes the heartbeat."""
        with self._lock:  # so that the last one is that of the last state
            temporary = self._file.with_name(f".{self._file.name}-{os.getpid()}")
            temporary.write_text(json.dumps({"step": self.state.step, "phase": self.state.phase}))
            os.replace(temporary, self._file)


def begin_if_asked() -> None:
    """Begins to write heartbeats if this process was started by a launcher; otherwise, and a second time, no-op."""
    place = os.environ.get(VARIABLE)
    if place and not _writer:
        _writer.append(_Writer(Path(place)))


def note(phase: str, num_steps: int = 0) -> None:
    """Notes what this process does, and how many steps it has trained since the last note."""
    if _writer:
        state = _writer[0].state
        state.phase = phase
        if num_steps:
            state.step = (state.step or 0) + num_steps


def note_failure() -> None:
    """Writes a final heartbeat: this process ends after an exception, or hangs while other workers wait for it."""
    if _writer:
        _writer[0].state.phase = FAILED
        with contextlib.suppress(OSError):
            _writer[0].write()


def note_first_step(step: int) -> None:
    """Notes that training begins after so many steps."""
    if _writer and step:
        _writer[0].state.step = step


def last_heartbeat(file: Path) -> Heartbeat | None:
    """The last sign of life in a file; None if there was none yet.

    Example:
        >>> last_heartbeat(Path("no/such/file")) is None
        True
    """
    try:
        age = time.time() - file.stat().st_mtime
        found = json.loads(file.read_text())
        return Heartbeat(found["step"], found["phase"], max(0.0, age))
    except (OSError, ValueError, KeyError, TypeError):
        return None
