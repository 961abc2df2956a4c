"""Processes on the nodes of a Ray cluster, used like those of a `ForkServer`."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfaccel.extras.cluster.ray_process_host import ProcessHost
from tfaccel.processes.child import Environment, how_it_ended

_EXCHANGE_SECONDS = 0.1
_ANSWER_SECONDS = 30.0
_SHOWN_CHARACTERS = 500
_SILENCE_SECONDS = 120.0  # after which a host counts as lost, though Ray has not noticed


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
    """Processes on nodes that Ray chooses, by actors which each hold cores and GPUs. This process is connected to Ray.

    Args:
        preload, environment: as for `ForkServer`.
        cores, gpus: of each actor.
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
                host.failure = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
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
