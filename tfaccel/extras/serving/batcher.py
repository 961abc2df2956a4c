"""Batches requests of many clients for the model, in one thread."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfaccel.extras.serving.request_error import RequestError

Arrays = dict[str, np.ndarray]


@dataclass(eq=False)
class Work:
    """One request that waits for the model.

    Args:
        run: called with the arrays of one or several requests.
        key: requests of equal keys can share a batch; None for one that is not batched.
        arrays: by name; those that share a batch are concatenated along the first axis.
        num_rows: their length along it.
        client: the receiver of the answer.
    """

    run: Callable[[Sequence[Work]], Sequence[Any]]
    key: Hashable
    arrays: Arrays
    num_rows: int
    client: Any
    arrival: float = field(default_factory=time.monotonic)


class Batcher:
    """A queue with a thread that runs the model on batches of requests.

    Args:
        max_batch_size: maximum number of rows in a batch; a larger request is a batch of its own.
        wait_seconds: how long the oldest request waits for others.
        max_queue: maximum number of waiting requests.
        deliver: called in the thread with the results of a batch: pairs of a client and a result or an exception.
        retry_seconds: the `Retry-After` sent to clients if the queue is full.
    """

    def __init__(
        self,
        *,
        max_batch_size: int,
        wait_seconds: float,
        max_queue: int,
        deliver: Callable[[list[tuple[Any, Any]]], None],
        retry_seconds: int = 1,
    ) -> None:
        self._max_batch_size, self._wait_seconds, self._max_queue = max_batch_size, wait_seconds, max_queue
        self._deliver, self._retry_seconds = deliver, retry_seconds
        self._waiting: OrderedDict[Hashable, deque[Work]] = OrderedDict()
        self._num_waiting = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="tfaccel-batcher", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """The number of waiting requests."""
        return self._num_waiting

    def submit(self, work: Work) -> None:
        """Puts a request into the queue.

        Raises:
            RequestError: 429, if the queue is full; 503, if the server is stopping.
        """
        with self._changed:
            if self._closed:
                raise RequestError(503, "The server is stopping.")
            if self._num_waiting >= self._max_queue:
                raise RequestError(
                    429,
                    f"{self._num_waiting} requests are waiting already. Try again later.",
                    {"Retry-After": str(self._retry_seconds)},
                )
            self._waiting.setdefault(work if work.key is None else work.key, deque()).append(work)
            self._num_waiting += 1
            self._changed.notify()

    def close(self) -> None:
        """Finishes the waiting requests, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            try:
                results = list(batch[0].run(batch))
            except Exception as error:  # Any error of the model is sent to these clients.
                results = [error] * len(batch)
            self._deliver([(work.client, result) for work, result in zip(batch, results, strict=True)])

    def _next_batch(self) -> list[Work] | None:
        """Waits for a batch that is full, or whose oldest request has waited long enough; None at the end."""
        with self._changed:
            while True:
                while not self._waiting:
                    if self._closed:
                        return None
                    self._changed.wait()
                key = self._full_key()
                if key is None:
                    key, oldest = min(((k, works[0].arrival) for k, works in self._waiting.items()), key=lambda p: p[1])
                    left = oldest + self._wait_seconds - time.monotonic()
                    if left > 0 and not self._closed and key is not self._waiting[key][0]:
                        self._changed.wait(left)
                        continue
                return self._take(key)

    def _full_key(self) -> Hashable:
        for key, works in self._waiting.items():
            if len(works) >= self._max_batch_size or sum(work.num_rows for work in works) >= self._max_batch_size:
                return key
        return None

    def _take(self, key: Hashable) -> list[Work]:
        """The requests at the head of a queue that fit into one batch."""
        works = self._waiting[key]
        batch = [works.popleft()]
        num_rows = batch[0].num_rows
        while works and num_rows + works[0].num_rows <= self._max_batch_size:
            batch.append(works.popleft())
            num_rows += batch[-1].num_rows
        if not works:
            del self._waiting[key]
        self._num_waiting -= len(batch)
        return batch
