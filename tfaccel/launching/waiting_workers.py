"""Workers that have loaded TensorFlow, and wait for a restart.

A restart of two workers took 8 seconds, of which loading TensorFlow took half. What a worker finds must be what it
would find without this: only a Python program of this interpreter waits, and only with the environment with which the
workers of the first attempt loaded TensorFlow, as they report it with their signs of life.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tfaccel.hardware.cpu import free_memory_bytes
from tfaccel.hardware.machine import Machine
from tfaccel.launching.local_worker import LaunchedWorker, WorkerPlace
from tfaccel.processes.child import Environment
from tfaccel.processes.heartbeat import Heartbeat
from tfaccel.processes.process_start import environment_digest

_PROGRAM = "tfaccel.training.waiting_program"
_ONLY_LOGS = ("TF_CPP_MIN_LOG_LEVEL",)  # scripts set it before they import; it changes no numbers
_FREE_BYTES = 2 << 30  # for each worker; one that waits takes 0.8 GB


class WaitingWorkers:
    """The workers of the next attempt.

    Args:
        command: program and arguments of all workers.
        places: their cores and GPUs.
        folder: for their logs.
        shows: whether their output goes to the screen.
    """

    def __init__(self, command: Sequence[str], places: Sequence[WorkerPlace], *, folder: Path, shows: bool) -> None:
        self._program = python_program(command)
        self._places, self._folder, self._shows = places, folder, shows
        self._waiting: list[LaunchedWorker] = []
        self._changes: dict[str, str | None] | None = None  # that importing must have made; None if that is not known

    def prepare(self, beats: Sequence[Heartbeat | None], given: Environment) -> None:
        """Starts them, once all workers train, unless they are there.

        Args:
            beats: the workers' last signs of life.
            given: the environment that the workers have in this attempt.
        """
        if self._waiting or not self._program or not all(beat is not None and beat.step for beat in beats):
            return
        free = free_memory_bytes(Machine.here())
        has_room = free is not None and free > _FREE_BYTES * len(self._places)
        begun_with = environment_digest({**os.environ, **given})
        found = [beat.loaded_with for beat in beats if beat is not None and beat.begun_with == begun_with]
        changes = found[0] if found and found.count(found[0]) == len(self._places) and has_room else None
        if changes is None:
            self._program = []
            return
        was_loaded = all(beat is not None and beat.was_loaded for beat in beats)
        said = {name: value for name, value in changes.items() if name in _ONLY_LOGS or not was_loaded}
        self._changes = {name: value for name, value in changes.items() if name not in said} if was_loaded else None
        environment = {**given, **said, "TF_CONFIG": None}
        self._waiting = [self._start(place, environment) for place in self._places]

    def _start(self, place: WorkerPlace, environment: Environment) -> LaunchedWorker:
        file = self._file(place)
        file.unlink(missing_ok=True)
        command = [str(file), *self._program]
        return LaunchedWorker(
            command, place, environment=environment, folder=self._folder, shows=self._shows, program=_PROGRAM
        )

    def _file(self, place: WorkerPlace) -> Path:
        return self._folder / f".waiting-{place.index}"

    def take(self) -> list[LaunchedWorker]:
        """Those that are ready, in order, and are not kept any more; none if one of them is not as it should be."""
        taken, self._waiting = self._waiting, []
        if taken and all(self._is_ready(worker) for worker in taken):
            return taken
        for worker in taken:
            worker.end()
        return []

    def _is_ready(self, worker: LaunchedWorker) -> bool:
        """Whether it has loaded TensorFlow, and that has changed the environment as it did in the worker before."""
        try:
            changes = json.loads(self._file(worker.place).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return worker.status is None and self._changes in (None, changes)

    def close(self) -> None:
        """Ends those that wait."""
        self._program = []
        for worker in self._waiting:
            worker.end()
        for place in self._places:
            self._file(place).unlink(missing_ok=True)


def python_program(command: Sequence[str]) -> list[str]:
    """The Python file, or `-m` and a module, with arguments, that a command runs by this interpreter; else none.

    Example:
        >>> python_program([sys.executable, "train.py", "--epochs=3"]), python_program(["sh", "train.sh"])
        (['train.py', '--epochs=3'], [])
    """
    found = shutil.which(command[0]) if command else None
    if found is None:
        return []
    if _is_this_python(found):
        rest = list(command[1:])
        return [] if not rest or (rest[0].startswith("-") and (rest[0] != "-m" or len(rest) == 1)) else rest
    try:
        with open(found, "rb") as file:
            line = file.readline(4096)
    except OSError:
        return []
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    return [found, *command[1:]] if len(words) == 1 and _is_this_python(words[0]) else []


def _is_this_python(path: str) -> bool:
    """Whether it is this interpreter: by its folder too, which decides what packages it has."""
    same_folder = os.path.dirname(os.path.abspath(path)) == os.path.dirname(sys.executable)
    try:
        return same_folder and os.path.samefile(path, sys.executable)
    except OSError:
        return False
