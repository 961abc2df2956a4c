"""The engine "ray" of `train` and `search`: their workers on the nodes of a Ray cluster, forked by actors there."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tfaccel.errors import LaunchError, SearchError, in_one_line
from tfaccel.extras.cluster.cluster_job import ClusterJob, RayOptions
from tfaccel.extras.cluster.ray_engine import check_ray_is_installed, connected, run_on_ray
from tfaccel.known_names import check_names
from tfaccel.processes.child import Environment, how_it_ended
from tfaccel.processes.fork_server import ForkedChild, ForkServer

_OF_RAY = tuple(one.name for one in fields(RayOptions) if one.name != "log_dir")
_OF_JOB = ("name", "cores_per_worker", "gpus_per_worker", "max_restarts", "grace_seconds", "environment")
_OF_SEARCH = ("address", "connect_seconds", "wait_seconds", "cores_per_worker", "gpus_per_worker")
_NO_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}
_EXCHANGE_SECONDS = 0.1
_ANSWER_SECONDS = 30.0
_SHOWN_CHARACTERS = 500
_SILENCE_SECONDS = 120.0  # after which a host counts as lost, though Ray has not noticed
_LOG_CHARACTERS = 1_000_000

Event = tuple[str, Any, int | None]  # name of the process, message, exit status; a message of None is its last event


class RayWorkers:
    """Workers that train.

    Args:
        num_workers: how many.
        options: those of `RayOptions` and `ClusterJob`.

    Raises:
        LaunchError: for an option that has no such value.
    """

    options = (*_OF_RAY, *_OF_JOB)

    def __init__(self, num_workers: int, options: Mapping[str, Any]) -> None:
        self._num_workers, self._given = num_workers, options
        self._ray(Path())
        self._job(("true",))

    def run(
        self, command: Sequence[str], *, folder: Path, on_event: Callable[[str], None], shows_output: bool = True
    ) -> int:
        """Runs a command as each worker; see `WorkerGroup.run`."""
        on_line = _show if shows_output else _drop
        return run_on_ray(self._job(command), self._ray(folder), on_line=on_line, on_event=on_event)

    def _ray(self, folder: str | os.PathLike[str]) -> RayOptions:
        return RayOptions(log_dir=folder, **_taken(self._given, _OF_RAY))

    def _job(self, command: Sequence[str]) -> ClusterJob:
        return ClusterJob(command=tuple(command), num_workers=self._num_workers, **_taken(self._given, _OF_JOB))


class RaySearch:
    """Workers of a search.

    Args:
        parallel: how many.
        options: some of those of `RayOptions` and `ClusterJob`.

    Raises:
        SearchError: for an unknown option.
        LaunchError: for a value of the wrong kind.

    Attributes:
        cores_per_worker: cores of each.
        wait_seconds: how long to wait for a place.
    """

    def __init__(self, parallel: int, options: Mapping[str, Any]) -> None:
        check_names(options, _OF_SEARCH, SearchError, "A search on Ray has no option {!r}.")
        self._ray = RayOptions(log_dir=".", **_taken(options, _OF_RAY))
        job = {"cores_per_worker": 1, **_taken(options, _OF_JOB)}
        self._job = ClusterJob(command=("tfaccel", "tune"), num_workers=parallel, **job)
        self.cores_per_worker = self._job.cores_per_worker
        self.wait_seconds = self._ray.wait_seconds

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Within the block, this process is connected to the cluster."""
        check_ray_is_installed()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(connected(self._job, self._ray.address, seconds=self._ray.connect_seconds))
            except LaunchError as error:  # its workers are the search's
                raise LaunchError(str(error).replace("--num_workers", "--parallel")) from error
            yield

    def fork_server(self, preload: Sequence[str], environment: Environment) -> RayForkServer:
        """Starts the workers; used like a `ForkServer`."""
        cores, gpus = self._job.cores_per_worker or 1, self._job.gpus_per_worker
        environment = {**environment, **({} if gpus else _NO_GPUS)}
        return RayForkServer(preload, environment=environment, cores=cores, gpus=gpus)


def _taken(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _show(index: int, line: str) -> None:
    sys.stdout.write(f"[{index}] {line}\n")
    sys.stdout.flush()


def _drop(index: int, line: str) -> None:
    """Leaves a line to the log."""


class RayChild:
    """A process on a node.

    Attributes:
        name: of the process.
        status: its exit status, negative for a signal; None while it runs, and if it was lost.
    """

    def __init__(self, name: str, host: _Host) -> None:
        self.name = name
        self.host = host
        self.status: int | None = None

    def send(self, message: Any) -> None:
        """Sends an object; ignored if the process has ended."""
        self.host.orders.append(("send", self.name, message))

    def how_it_ended(self) -> str:
        """How it ended, in words that follow its name."""
        return "was lost with its node, or the Ray actor there" if self.status is None else how_it_ended(self.status)


class _Host:
    """An actor of Ray, its processes, and the exchange with it that is under way."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.children: dict[str, RayChild] = {}
        self.orders: list[tuple[str, str, Any]] = []
        self.asked_at = time.monotonic()
        self.has_answered = False
        self.failure = ""
        self.answer: Any = None
        self.ask()

    def ask(self) -> None:
        """Sends the orders, and waits for events, without blocking."""
        self.answer = self.actor.exchange.remote(self.orders, _EXCHANGE_SECONDS)
        self.orders, self.asked_at = [], time.monotonic()


class RayForkServer:
    """Processes on nodes that Ray chooses, by actors which each hold cores and GPUs.

    This process is connected to Ray.
    """

    def __init__(self, preload: Sequence[str], *, environment: Environment, cores: int, gpus: int) -> None:
        self._arguments = tuple(preload), dict(environment), os.getcwd()
        self._resources = {"num_cpus": cores, "num_gpus": gpus}
        self._hosts: dict[str, _Host] = {}
        self._unread: deque[tuple[RayChild, Any]] = deque()
        self._logs: dict[str, str] = {}
        self._count = 0

    def start(self, kind: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> RayChild:
        """Starts a process; see `ForkServer.start`. Those of one kind are on one node, until it is lost."""
        import ray

        if kind not in self._hosts:
            remote: Any = ray.remote
            self._hosts[kind] = _Host(remote(**self._resources)(ProcessHost).remote(*self._arguments))
        host = self._hosts[kind]
        self._count += 1
        child = RayChild(f"{kind}.{self._count}", host)
        host.children[child.name] = child
        host.orders.append(("start", child.name, (kind, module, list(arguments), dict(environment))))
        return child

    def kill(self, child: RayChild) -> None:
        """Kills a process, and all that it has started."""
        child.host.orders.append(("kill", child.name, None))

    def waiting_seconds(self, child: RayChild) -> float:
        """How long Ray has been looking for a place for a process; 0 if it has found one."""
        return 0.0 if child.host.has_answered else time.monotonic() - child.host.asked_at

    def next_message(self, time_limit_seconds: float) -> tuple[RayChild | None, Any]:
        """The next message of any process, or None as its last when it has ended; (None, None) if none arrives."""
        if not self._unread:
            self._read(time_limit_seconds)
        return self._unread.popleft() if self._unread else (None, None)

    def _read(self, time_limit_seconds: float) -> None:
        import ray

        answers = {host.answer: kind for kind, host in self._hosts.items()}
        ready, waiting = ray.wait(list(answers), num_returns=1, timeout=time_limit_seconds) if answers else ([], [])
        for answer in ready:
            host = self._hosts[answers[answer]]
            try:
                events = ray.get(answer)
            except ray.exceptions.RayError as error:
                host.failure = in_one_line(error, _SHOWN_CHARACTERS)
                self._lose(answers[answer])
                continue
            host.has_answered = True
            for name, message, status in events:
                child = host.children[name]
                if message is None:
                    child.status = status
                    del host.children[name]
                self._unread.append((child, message))
            host.ask()
        for answer in waiting:
            host = self._hosts[answers[answer]]
            if host.has_answered and time.monotonic() - host.asked_at > _SILENCE_SECONDS:
                self._lose(answers[answer])

    def _lose(self, kind: str) -> None:
        """Forgets a host, whose processes have ended with it."""
        host = self._hosts.pop(kind)
        _kill(host)
        self._unread.extend((child, None) for child in host.children.values())

    def release(self, child: RayChild) -> None:
        """Gives back the place of a process, or stops looking for one."""
        for kind, host in list(self._hosts.items()):
            if host is child.host:
                self._keep_logs(kind, host)
                _asked(host, "close")
                _kill(host)
                del self._hosts[kind]

    def end_of_log(self, child: RayChild) -> str:
        """The end of a process's log; if its node is lost, what Ray says."""
        there = child.host in self._hosts.values()
        return str(_asked(child.host, "end_of_log", child.name) or "") if there else child.host.failure

    def save_logs(self, folder: Path) -> None:
        """Writes the logs of all processes whose nodes were not lost."""
        for kind, host in self._hosts.items():
            self._keep_logs(kind, host)
        for name, text in self._logs.items():
            (folder / name).write_text(text, encoding="utf-8")

    def _keep_logs(self, kind: str, host: _Host) -> None:
        for name, text in (_asked(host, "logs") or {}).items():
            self._logs[name if name.startswith(kind) else f"{kind}-{name}"] = text  # each host has a fork server

    def close(self) -> None:
        """Ends all processes, and gives their cores back."""
        for host in self._hosts.values():
            _asked(host, "close")
            _kill(host)
        self._hosts.clear()


def _asked(host: _Host, name: str, *arguments: Any) -> Any:
    """What a host answers; None if it does not."""
    import ray

    if not host.has_answered:
        return None
    try:
        return ray.get(getattr(host.actor, name).remote(*arguments), timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError:
        return None


def _kill(host: _Host) -> None:
    import ray

    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        ray.kill(host.actor)


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
