"""What workers of a machine run, how they are launched, which cores and GPUs each gets, and one launched worker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfaccel.errors import LaunchError
from tfaccel.hardware.hardware import Hardware
from tfaccel.processes import heartbeat
from tfaccel.processes.child import NO_INPUT, PIPE, Child, Environment
from tfaccel.processes.heartbeat import Heartbeat, Silence, last_heartbeat

_PROGRAM = "tfaccel.launching.worker_program"
_TRACEBACK = "Traceback (most recent call last):"
_ERROR = re.compile(r"(?:tfaccel[\w.]*\.\w+|tfaccel [\w-]+): (.+)")  # as Python, or a command, shows it
_KEPT_LINES = 400
_SHOWN_LINES = 60
_SHOWN_WITHOUT_TRACEBACK = 15
_on_screen = threading.Lock()


MAX_WORKERS_PER_CORE = 16
DEFAULT_GRACE_SECONDS = 15.0
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_ADVICE = "Give it after `--`, such as `-- python train.py`, or `-- tfaccel train --recipe=image_classification`."


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How to launch workers on this machine.

    Args:
        num_workers: how many.
        max_restarts: how often all of them are started again, at most.
        cores_per_worker, gpus_per_worker: see `worker_places`.
        grace_seconds: how long they may take to stop after SIGTERM or Ctrl-C.
        silence_seconds: a worker without a sign of life for this long counts as lost; time in which it waits for a
            processor or a disk does not count.
        shows_output: show the workers' output; it is kept in logs in any case.

    Raises:
        LaunchError: for a number out of range.
    """

    num_workers: int
    max_restarts: int = 3
    cores_per_worker: int | None = None
    gpus_per_worker: int | None = None
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    silence_seconds: float = 20.0
    shows_output: bool = True

    def __post_init__(self) -> None:
        for name, least in (("num_workers", 1), ("max_restarts", 0), ("cores_per_worker", 1), ("gpus_per_worker", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise LaunchError(f"{name} must be a whole number of at least {least}. Received: {name}={value!r}.")
        for name in ("grace_seconds", "silence_seconds"):
            if not getattr(self, name) > 0:
                raise LaunchError(
                    f"{name} must be a number of seconds above 0. Received: {name}={getattr(self, name)}."
                )


@dataclass(frozen=True)
class WorkerPlace:
    """A worker's place on its machine.

    Args:
        index: of the worker.
        cores: the hardware threads that it is pinned to; empty for all.
        gpus: the GPUs that it sees, as indices of those that the launcher sees.
    """

    index: int
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()


def worker_places(
    num_workers: int,
    hardware: Hardware,
    *,
    cores: Sequence[int] | None = None,
    cores_per_worker: int | None = None,
    gpus_per_worker: int | None = None,
) -> list[WorkerPlace]:
    """Divides a machine among workers.

    Args:
        num_workers: how many.
        hardware: the machine.
        cores: its hardware threads; by default those that this process may use.
        cores_per_worker: how many each worker gets; None to divide all of them evenly. With more workers than cores,
            none is pinned.
        gpus_per_worker: how many each worker gets; None to divide all of them evenly; 0 to train on CPUs.

    Raises:
        LaunchError: if the machine has too few cores or GPUs; the message says how many there are.

    Example:
        >>> [place.cores for place in worker_places(2, Hardware(), cores=range(5))]
        [(0, 1), (2, 3)]
        >>> worker_places(4, Hardware(), cores=range(2))[3]
        WorkerPlace(index=3, cores=(), gpus=())
    """
    usable = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if num_workers > MAX_WORKERS_PER_CORE * len(usable):
        raise LaunchError(
            f"{num_workers} workers are too many for {len(usable)} cores: at most {MAX_WORKERS_PER_CORE} for each "
            "core. Lower --num_workers."
        )
    num_cores = len(usable) // num_workers if cores_per_worker is None else cores_per_worker
    if num_cores * num_workers > len(usable):
        raise LaunchError(
            f"{num_workers} workers with {num_cores} cores each need {num_cores * num_workers} cores; this process may "
            f"use {len(usable)}. Lower --cores_per_worker or --num_workers."
        )
    num_gpus = _gpus_per_worker(num_workers, len(hardware.gpus), gpus_per_worker)
    return [
        WorkerPlace(
            index,
            tuple(usable[index * num_cores : (index + 1) * num_cores]),
            tuple(range(index * num_gpus, (index + 1) * num_gpus)),
        )
        for index in range(num_workers)
    ]


def _gpus_per_worker(num_workers: int, there: int, wanted: int | None) -> int:
    if wanted is None and there and there < num_workers:
        raise LaunchError(
            f"There are {there} GPUs for {num_workers} workers. Start at most {there} workers, or train on CPUs: "
            "--gpus_per_worker=0."
        )
    count = there // num_workers if wanted is None else wanted
    if count * num_workers > there:
        raise LaunchError(
            f"{num_workers} workers with {count} GPUs each need {count * num_workers} GPUs; this machine has {there} "
            "(`tfaccel env` lists them). Lower --gpus_per_worker or --num_workers."
        )
    return count


def visible_gpus(place: WorkerPlace) -> dict[str, str]:
    """The environment variable that shows a worker its GPUs; empty if it has none of its own."""
    if not place.gpus:
        return {}
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[gpu] if visible else str(gpu) for gpu in place.gpus)}


def found_command(command: Sequence[str]) -> str:
    """The path of a command's program.

    Raises:
        LaunchError: if the program does not exist, or it is Python and the script does not.
    """
    program = shutil.which(command[0]) if command else None
    if program is None:
        raise LaunchError(f"The command to launch was not found: {command[0] if command else ''!r}. {_ADVICE}")
    script = next(iter(command[1:]), "")
    if _PYTHON.fullmatch(Path(command[0]).name) and script.endswith(".py") and not Path(script).is_file():
        raise LaunchError(f"The script to launch was not found: {script!r}. {_ADVICE}")
    return program


class LaunchedWorker(Child):
    """A running worker. Its output goes to the screen, each line after its index, and to a log.

    Args:
        command: program and arguments.
        place: its cores and GPUs.
        environment: what to add to the environment of this process.
        folder: for its log and its heartbeat.
        shows: whether its output goes to the screen.
        program: the module that becomes the worker: at once, or when it is told to `begin`.

    Attributes:
        place: as given.
        ended_at: when its end was noticed, by `time.monotonic`; None while it runs.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        place: WorkerPlace,
        *,
        environment: Environment,
        folder: Path,
        shows: bool = True,
        program: str = _PROGRAM,
    ) -> None:
        self.place = place
        self._is_shown, self._shows = shows, shows and program == _PROGRAM
        self._screens = {"stdout": sys.stdout, "stderr": sys.stderr}
        self.ended_at: float | None = None
        self._heartbeat = folder / f".heartbeat-{place.index}"
        self._errors: deque[str] = deque(maxlen=_KEPT_LINES)
        if program == _PROGRAM:  # else it is still another worker's
            self._heartbeat.unlink(missing_ok=True)
        pinned = ",".join(map(str, place.cores))
        super().__init__(
            [sys.executable, "-m", program, pinned, *command],
            environment={
                **visible_gpus(place),
                **environment,
                heartbeat.VARIABLE: str(self._heartbeat),
                "PYTHONUNBUFFERED": "1",
            },
            pipes=("stdout", "stderr"),
            log=folder / f"worker-{place.index}.log",
            stdin=NO_INPUT if program == _PROGRAM else PIPE,
        )
        self._silence = Silence(self._heartbeat, self.process.pid)
        self.read_lines(self._keep, "stdout", "stderr")

    def begin(self, environment: Environment) -> None:
        """Lets a process that waits run its program, with these variables."""
        self._heartbeat.unlink(missing_ok=True)
        self._shows = self._is_shown
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended, as its status says
                self.process.stdin.write(json.dumps(dict(environment)) + "\n")
                self.process.stdin.close()

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

    def silent_seconds(self) -> float:
        """For how long it has given no sign of life, though it could have; see `Silence`."""
        return self._silence.seconds()

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
