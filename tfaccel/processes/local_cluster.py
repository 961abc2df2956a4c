"""Worker processes on this machine: started together, watched together, ended together."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfaccel.errors import TfaccelError
from tfaccel.processes.child import Child, Environment, how_it_ended

# Below the ports that Linux gives to outgoing connections, so that none of those takes a port before its worker does.
_PORTS = range(20000, 32768)

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0

OnLine = Callable[[int, str], None]


class WorkerError(TfaccelError, RuntimeError):
    """A worker process failed, or the workers took too long.

    Attributes:
        index: the worker that failed first; None when all took too long.
        output: the end of what it had written to its standard error.
    """

    def __init__(self, message: str, *, index: int | None, output: str) -> None:
        super().__init__(f"{message} The end of its output:\n{output}" if output else message)
        self.index = index
        self.output = output


@dataclass(frozen=True)
class WorkerOutput:
    """The output of a worker that succeeded."""

    stdout: str
    stderr: str


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports of 127.0.0.1 that nothing listens on.

    Example:

    >>> len(set(free_ports(3)))
    3
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(ports) == count:
                break
            candidate = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                candidate.bind(("127.0.0.1", port))
                ports.append(port)
    if len(ports) < count:
        raise WorkerError(f"Only {len(ports)} of {count} ports are free on 127.0.0.1.", index=None, output="")
    return ports


def cluster_environments(num_workers: int) -> list[dict[str, str]]:
    """The environment (`TF_CONFIG`) of each worker of a new cluster on 127.0.0.1.

    Example:

    >>> json.loads(cluster_environments(2)[1]["TF_CONFIG"])["task"]
    {'type': 'worker', 'index': 1}
    """
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(num_workers)]}
    tasks = [{"type": "worker", "index": index} for index in range(num_workers)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


def run_local_cluster(
    command: Sequence[str], *, num_workers: int, time_limit_seconds: float, on_line: OnLine | None = None
) -> list[WorkerOutput]:
    """Runs a command as each worker of a cluster on this machine; see `run_workers`.

    Example:

    >>> import sys
    >>> command = [sys.executable, "-c", "import os; print(len(os.environ['TF_CONFIG']) > 0)"]
    >>> [worker.stdout for worker in run_local_cluster(command, num_workers=2, time_limit_seconds=60)]
    ['True\\n', 'True\\n']
    """
    environments = cluster_environments(num_workers)
    return run_workers(command, environments=environments, time_limit_seconds=time_limit_seconds, on_line=on_line)


def run_workers(
    command: Sequence[str],
    *,
    environments: Sequence[Environment],
    time_limit_seconds: float,
    on_line: OnLine | None = None,
    cancelled: threading.Event | None = None,
) -> list[WorkerOutput]:
    """Runs a command once per environment, in parallel, and waits for all.

    When one fails, the others are ended with all that they started: they would wait for it forever.
    The standard input of the workers is a pipe that nothing is written to. It ends when this process does, so that a
    worker that reads from it can end as well.

    Args:
        command: program and arguments.
        environments: one for each worker: what to add to this process's environment; None removes a name.
        time_limit_seconds: how long all of them may take together.
        on_line: called with a worker's index and each line of its standard output, while it runs, from a thread.
        cancelled: when another thread sets it, all workers are ended.

    Returns:
        The output of each worker, in order.
    """
    deadline = time.monotonic() + time_limit_seconds
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_Worker(command, env, i, on_line)) for i, env in enumerate(environments)]
        while any(worker.process.poll() is None for worker in workers):
            _raise_if_failed(workers)
            if cancelled is not None and cancelled.is_set():
                raise WorkerError("The workers were ended: the run was cancelled.", index=None, output="")
            if time.monotonic() > deadline:
                slow = next(worker for worker in workers if worker.process.poll() is None)
                message = f"The workers were ended after {time_limit_seconds:g} seconds; worker {slow.index} still ran."
                raise WorkerError(message, index=None, output=slow.output())
            time.sleep(_POLL_SECONDS)
        _raise_if_failed(workers)
        for worker in workers:
            worker.wait_for_lines()
        return [WorkerOutput("".join(worker.lines), worker.output(None)) for worker in workers]


class _Worker(Child):
    """A started worker; a thread reads its standard output."""

    def __init__(self, command: Sequence[str], environment: Environment, index: int, on_line: OnLine | None) -> None:
        self.index, self.lines, self._on_line = index, list[str](), on_line
        super().__init__(command, environment=environment, pipes=("stdout",))
        self.read_lines(self._keep, "stdout")

    def __exit__(self, *error: object) -> None:
        self.end(grace_seconds=_GRACE_SECONDS)

    def _keep(self, pipe: str, line: str) -> None:
        self.lines.append(line)
        if self._on_line is not None:
            self._on_line(self.index, line)


def _raise_if_failed(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        status = worker.process.poll()
        if status:
            message = f"Worker {worker.index} of {len(workers)} {how_it_ended(status)}."
            raise WorkerError(message, index=worker.index, output=worker.output())
