"""One launched worker: its process, its output on the screen and in a log, and its signs of life."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from tfaccel.launching.worker_places import WorkerPlace, visible_gpus
from tfaccel.processes import heartbeat
from tfaccel.processes.child import NO_INPUT, Child, Environment
from tfaccel.processes.heartbeat import Heartbeat, last_heartbeat

_TRACEBACK = "Traceback (most recent call last):"
_ERROR = re.compile(r"(?:tfaccel[\w.]*\.\w+|tfaccel [\w-]+): (.+)")  # as Python, or a command, shows it
_KEPT_LINES = 400
_SHOWN_LINES = 60
_SHOWN_WITHOUT_TRACEBACK = 15
_on_screen = threading.Lock()


class LaunchedWorker(Child):
    """A running worker. Its output goes to the screen, each line after its index, and to a log.

    Args:
        command: program and arguments.
        place: its cores and GPUs.
        environment: what to add to the environment of this process.
        folder: for its log and its heartbeat.
        shows: whether its output goes to the screen.

    Attributes:
        place: as given.
        ended_at: when its end was noticed, by `time.monotonic`; None while it runs.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], place: WorkerPlace, *, environment: Environment, folder: Path, shows: bool = True
    ) -> None:
        self.place = place
        self._shows, self._screens = shows, {"stdout": sys.stdout, "stderr": sys.stderr}
        self.ended_at: float | None = None
        self._heartbeat = folder / f".heartbeat-{place.index}"
        self._heartbeat.unlink(missing_ok=True)
        self._errors: deque[str] = deque(maxlen=_KEPT_LINES)
        pinned = ",".join(map(str, place.cores))
        super().__init__(
            [sys.executable, "-m", "tfaccel.launching.worker_program", pinned, *command],
            environment={
                **visible_gpus(place),
                **environment,
                heartbeat.VARIABLE: str(self._heartbeat),
                "PYTHONUNBUFFERED": "1",
            },
            pipes=("stdout", "stderr"),
            log=folder / f"worker-{place.index}.log",
            stdin=NO_INPUT,
        )
        self.read_lines(self._keep, "stdout", "stderr")

    def _keep(self, pipe: str, line: str) -> None:
        with _on_screen:
            self._output.write(line.encode())
            self._output.flush()
            if pipe == "stderr":
                self._errors.append(line)
            if self._shows:
                screen = self._screens[pipe]
                screen.write(f"[{self.place.index}] {line}")
                screen.flush()

    @property
    def status(self) -> int | None:
        """Its exit status; negative for a signal; None while it runs."""
        status = self.process.poll()
        if status is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
        return status

    def last_heartbeat(self) -> Heartbeat | None:
        """Its last sign of life; None if it has given none."""
        return last_heartbeat(self._heartbeat)

    def signal(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        if self.status is None:
            self.process.send_signal(number)

    def close(self) -> None:
        """Closes its pipes and its log, and forgets its signs of life."""
        with _on_screen:
            super().close()
        self._heartbeat.unlink(missing_ok=True)

    def last_words(self) -> str:
        """The traceback at the end of its standard error, or else the last lines."""
        lines = list(self._errors)
        starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        shown = lines[starts[-1] :][:_SHOWN_LINES] if starts else lines[-_SHOWN_WITHOUT_TRACEBACK:]
        return "".join(shown).rstrip()

    def last_sentence(self) -> str:
        """The first sentence of the error in its last line, such as which other worker it has lost; "" if none."""
        lines = [line.strip() for line in self._errors if line.strip()]
        found = _ERROR.match(lines[-1]) if lines else None
        return "" if found is None else f"{found[1].partition('. ')[0]:.300}".rstrip(".") + "."
