"""Signs of life of a process that trains, in a file that its launcher reads.

The launcher names the file in `TFACCEL_HEARTBEAT`. A thread writes it once a second, so that a process which is stopped
or hangs with the interpreter locked is noticed: its file grows old. One that waits for a processor or a disk is alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tfaccel.processes.process_start import changes_since_start, environment_at_start, environment_digest

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
        pid: of the process that wrote it.
        begun_with: a digest of the environment with which it was started.
        loaded_with: the variables that it had changed when it loaded TensorFlow; None if that is not known.
        was_loaded: whether TensorFlow was there before the first sign of life, so that importing made some changes.
    """

    step: int | None = None
    phase: str = "starting"
    pid: int = 0
    begun_with: str = ""
    loaded_with: dict[str, str | None] | None = None
    was_loaded: bool = False

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
        while self.state.phase != FAILED:
            self.write()
            time.sleep(SECONDS)

    def write(self) -> None:
        """Writes the heartbeat, or only its time when the disk is full."""
        with self._lock, contextlib.suppress(OSError):  # locked so that the last one is that of the last state
            temporary = self._file.with_name(f".{self._file.name}-{os.getpid()}")
            if self._file.exists():
                os.utime(self._file)
            temporary.touch(mode=0o600)  # variables may be secrets
            temporary.write_text(json.dumps(asdict(self.state) | {"pid": os.getpid()}))
            os.replace(temporary, self._file)


def begin_if_asked() -> None:
    """Begins to write heartbeats if this process was started by a launcher; otherwise, and a second time, no-op."""
    place = os.environ.get(VARIABLE)
    if place and not _writer:
        _writer.append(_Writer(Path(place)))
        state = _writer[0].state
        state.begun_with, state.was_loaded = environment_digest(environment_at_start()), "tensorflow" in sys.modules
        if state.was_loaded:
            state.loaded_with = changes_since_start()


def note_loading() -> None:
    """Notes that this process is about to load TensorFlow."""
    if _writer:
        _writer[0].state.loaded_with = changes_since_start()


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
        found = json.loads(file.read_text())
        return Heartbeat(**found)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Silence:
    """How long a process has given no sign of life, though it could have.

    Time in which it waits for a processor or a disk does not count, nor does that after its end, nor time in which this
    process does not ask, as when both are suspended. Times of files are only compared: the clock may be set.

    Args:
        file: of the heartbeat.
        session: only a process of this session is looked at: elsewhere, its id may be another one's.
    """

    def __init__(self, file: Path, session: int) -> None:
        self._file, self._session = file, session
        self._seen: tuple[int, int] | None = None
        self._asked_at, self._used, self._seconds = 0.0, 0.0, 0.0

    def seconds(self) -> float:
        """The length of its silence so far; to be asked once a second or more often."""
        now = time.monotonic()
        passed, self._asked_at = min(2 * SECONDS, now - self._asked_at), now
        try:
            found = self._file.stat()
        except OSError:
            return 0.0
        seen, self._seen = self._seen, (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            passed = self._seconds = 0.0
        beat = last_heartbeat(self._file) if self._seconds > SECONDS else None
        self._seconds += passed if beat is None else self._could_speak(beat.pid, passed)
        return self._seconds

    def _could_speak(self, pid: int, passed: float) -> float:
        """For how much of this time the process did not wait for a processor or a disk."""
        try:
            if os.getsid(pid) != self._session:
                return passed
            used = sum(psutil.Process(pid).cpu_times()[:2])
            threads = Path(f"/proc/{pid}/task").glob("*/stat")
            waits = any(file.read_text().rpartition(")")[2].split()[0] in "RD" for file in threads)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return 0.0  # one process of a script, perhaps, which goes on
        except (OSError, IndexError, psutil.Error):
            return passed
        got, self._used = used - self._used, used
        return min(passed, max(0.0, got)) if waits else passed
