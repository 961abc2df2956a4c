"""Any number of HTTP clients without threads, each with one persistent connection."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass(frozen=True)
class Load:
    """The results of a load test, as seen by the clients.

    Attributes:
        seconds: length of the measurement.
        num_in_time: the requests that were answered with status 200 in it.
        latencies: the latency of each request that was answered in it or after it, in seconds.
        statuses: HTTP status -> those requests; 0 for those whose connection was lost.
    """

    seconds: float
    num_in_time: int
    latencies: tuple[float, ...]
    statuses: dict[int, int]

    @property
    def per_second(self) -> float:
        """Answers with status 200 per second."""
        return self.num_in_time / self.seconds

    @property
    def num_failed(self) -> int:
        """Requests with a status other than 200, or none."""
        return sum(count for status, count in self.statuses.items() if status != 200)

    def percentile(self, percent: float) -> float:
        """A percentile of the latency, in seconds."""
        return float(np.percentile(self.latencies, percent))


def post(path: str, body: bytes, *, host: str = "127.0.0.1") -> bytes:
    """The bytes of a POST request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def closed_loop(
    port: int,
    requests: Sequence[bytes],
    *,
    num_clients: int,
    seconds: float,
    warm_up_seconds: float = 0.0,
    at_half: Callable[[], None] | None = None,
) -> Load:
    """Runs clients that each send a request as soon as the previous one is answered.

    Args:
        port: the port of a server on this machine.
        requests: sent in turn.
        num_clients: number of concurrent clients.
        seconds: length of the measurement, in which requests are started.
        warm_up_seconds: length of the warm-up before it, whose answers are not counted.
        at_half: called halfway through, in a thread; the clients go on until it returns.
    """
    return asyncio.run(_closed_loop(port, requests, num_clients, (warm_up_seconds, seconds), at_half))


def open_loop(port: int, requests: Sequence[bytes], *, per_second: float, num_clients: int, seconds: float) -> Load:
    """Sends requests at a given rate, whether or not earlier ones are answered; latency starts when a request is due.

    Args:
        port: the port of a server on this machine.
        requests: sent in turn.
        per_second: the mean rate; intervals between requests are random (exponential), but the same at every call.
        num_clients: number of connections; a request waits for a free one.
        seconds: length of the measurement, in which requests are started.
    """
    return asyncio.run(_open_loop(port, requests, per_second, num_clients, seconds))


class _Client(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self, answered: Callable[[_Client, int], None]) -> None:
        self._answered = answered
        self._transport: Any = None
        self._received = b""
        self._needed: int | None = None
        self._status = 0
        self.is_waiting = False
        self.start = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, request: bytes) -> None:
        self._received, self._needed, self.is_waiting = b"", None, True
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._needed is None:
            place = self._received.find(_END_OF_HEAD)
            if place < 0:
                return
            head = self._received[:place].lower()
            self._status = int(head[9:12])
            begin = head.index(_LENGTH) + len(_LENGTH)
            self._needed = place + len(_END_OF_HEAD) + int(head[begin:].partition(b"\r\n")[0])
        if len(self._received) >= self._needed:
            self.is_waiting = False
            self._answered(self, self._status)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self.is_waiting:
            self.is_waiting = False
            self._answered(self, 0)
        self._transport = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _closed_loop(
    port: int,
    requests: Sequence[bytes],
    num_clients: int,
    spans: tuple[float, float],
    at_half: Callable[[], None] | None,
) -> Load:
    loop, statuses, latencies = asyncio.get_running_loop(), Counter[int](), []
    warm_up_seconds, seconds = spans
    begin = time.perf_counter() + warm_up_seconds
    number, num_active, num_in_time, done = 0, 0, 0, loop.create_future()
    waiting: asyncio.Task[None] | None = None

    def answered(client: _Client, status: int) -> None:
        nonlocal num_active, num_in_time
        now = time.perf_counter()
        if now >= begin:
            statuses[status] += 1
            latencies.append(now - client.start)
            num_in_time += status == 200 and now < begin + seconds
        is_measured = now < begin + seconds or (waiting is not None and not waiting.done())
        if is_measured and client.is_open:
            send(client)
            return
        num_active -= 1
        if num_active == 0 and not done.done():
            done.set_result(None)

    def send(client: _Client) -> None:
        nonlocal number
        number += 1
        client.start = time.perf_counter()
        client.send(requests[number % len(requests)])

    clients = await _connected(port, num_clients, answered)
    num_active = len(clients)
    if at_half is not None:
        waiting = asyncio.create_task(_later(warm_up_seconds + seconds / 2, at_half))
    for client in clients:
        send(client)
    await done
    if waiting is not None:
        await waiting
    for client in clients:
        client.close()
    return Load(seconds, num_in_time, tuple(latencies), dict(statuses))


async def _open_loop(port: int, requests: Sequence[bytes], per_second: float, num_clients: int, seconds: float) -> Load:
    loop, statuses, latencies = asyncio.get_running_loop(), Counter[int](), []
    gaps = np.random.default_rng(0).exponential(1 / per_second, max(1, round(per_second * seconds)))
    due = np.cumsum(gaps).tolist()
    waiting: list[float] = []
    num_answered, done = 0, loop.create_future()

    def answered(client: _Client, status: int) -> None:
        nonlocal num_answered
        num_answered += 1
        statuses[status] += 1
        latencies.append(time.perf_counter() - client.start)
        if waiting and client.is_open:
            send(client, waiting.pop(0))
        elif client.is_open:
            free.append(client)
        if num_answered == len(due) and not done.done():
            done.set_result(None)

    def send(client: _Client, start: float) -> None:
        client.start = start
        client.send(requests[len(latencies) % len(requests)])

    free = await _connected(port, num_clients, answered)
    clients = list(free)
    begin = time.perf_counter()
    for moment in due:
        delay = begin + moment - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        while free and not free[-1].is_open:  # a server ends connections that have been idle for long
            free.pop()
        if free:
            send(free.pop(), begin + moment)
        else:
            waiting.append(begin + moment)
    await done
    for client in clients:
        client.close()
    return Load(time.perf_counter() - begin, statuses[200], tuple(latencies), dict(statuses))


async def _connected(port: int, num_clients: int, answered: Callable[[_Client, int], None]) -> list[_Client]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: _Client(answered), "127.0.0.1", port) for _ in range(num_clients)]
    return [client for _, client in made]


async def _later(seconds: float, call: Callable[[], None]) -> None:
    await asyncio.sleep(seconds)
    await asyncio.to_thread(call)
