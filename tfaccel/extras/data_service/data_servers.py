"""The processes of the tf.data service of one training process: started together, supervised, ended with it.

There are N workers and one process with N dispatchers. A dispatcher gives the batches of a data set to whichever of its
workers asks first, so each worker has a dispatcher of its own: that is how worker i prepares the batches i, i + N, ...
(Coordinated reads, TensorFlow's own way to an order, need every worker to prepare the same endless data set.)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfaccel.errors import DataError
from tfaccel.processes import heartbeat
from tfaccel.processes.child import last_words
from tfaccel.processes.fork_server import ForkedChild, ForkServer
from tfaccel.processes.local_cluster import free_ports
from tfaccel.training.private.private_workers import servers_on_loopback

logger = logging.getLogger("tfaccel")

HOST = "127.0.0.1"
PROTOCOL = "grpc"
SIGN_OF_LIFE_SECONDS = 1.0
_SERVICE = tf.data.experimental.service  # loaded before the fork
_HEARTBEAT_MS = 500  # from a worker to its dispatcher, which may have been started again

MAX_RESTARTS = 3
_CALM_SECONDS = 600.0  # after which earlier restarts no longer count
_SILENT_SECONDS = 30.0
_START_SECONDS = 300.0
_POLL_SECONDS = 0.2
_UNBLOCK_SECONDS = 3.0
_PROGRAM = __name__  # its `main` runs in each process
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": None, "TF_CPP_MIN_LOG_LEVEL": "1", heartbeat.VARIABLE: None}


@dataclass
class _Server:
    """A process: what it is called, what it is told, and what is known about it."""

    name: str
    kind: str
    task: str
    child: ForkedChild | None = None
    process_id: int | None = None  # while it serves
    restarts: list[float] = field(default_factory=list)
    serves_since: float = 0.0
    last_sign: float = 0.0


class DataServers:
    """The processes of the service, which begin to start at once.

    A thread supervises them. One that ends, or gives no sign of life for 30 seconds, is started again with the same
    address, at most 3 times in 10 minutes. After that `failure` says what happened, and whoever waits for a batch gets
    an error.

    Args:
        num_workers: number of workers.

    Attributes:
        failure: why there will be no more batches; "" while there are.
    """

    def __init__(self, num_workers: int) -> None:
        self.failure = ""
        self._folder = tempfile.TemporaryDirectory(prefix="tfaccel-data-service-")
        self._fork_server = self._new_fork_server()
        ports = free_ports(2 * num_workers)
        self._ports = ports[:num_workers]
        self._generation = itertools.count()
        self._servers = [_Server("The dispatcher of the data workers", "dispatcher", self._dispatchers())]
        for number, (port, own) in enumerate(zip(self._ports, ports[num_workers:], strict=True)):
            task = json.dumps({"worker": own, "dispatcher": port})
            self._servers.append(_Server(f"Data worker {number} of {num_workers}", f"worker-{number}", task))
        self._changed, self._ends = threading.Condition(), False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="tfaccel-data-service", daemon=True)
        self._thread.start()

    @property
    def services(self) -> list[str]:
        """The address of each worker's dispatcher, for `tf.data.experimental.service`."""
        return [f"{PROTOCOL}://{HOST}:{port}" for port in self._ports]

    @property
    def process_ids(self) -> dict[str, int]:
        """The kind of each process that serves ("dispatcher", "worker-0", ...) -> its id."""
        return {server.kind: server.process_id for server in self._servers if server.process_id is not None}

    def wait(self) -> None:
        """Waits until all processes serve."""
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self.failure or self._ends or len(self.process_ids) == len(self._servers), _START_SECONDS
            )
        if self._ends:
            raise DataError("The data service is being closed.")
        if self.failure:
            raise DataError(self.failure)
        if not ready:
            missing = ", ".join(server.name for server in self._servers if server.process_id is None)
            raise DataError(f"The data service did not start within {_START_SECONDS:g} seconds. Missing: {missing}.")

    @contextlib.contextmanager
    def failures_named(self) -> Iterator[None]:
        """Within the block, an error that a failure of the service caused becomes a `DataError` that says so."""
        try:
            yield
        except Exception as error:
            if self.failure and not isinstance(error, DataError):
                raise DataError(self.failure) from error
            raise

    def forget(self, dataset_id: str) -> None:
        """Deletes what the dispatchers keep of a data set that nobody reads any more."""
        for place in Path(self._folder.name).glob(f"*/*/datasets/{dataset_id}"):
            place.unlink(missing_ok=True)

    def stop_waiting(self) -> None:
        """Ends all `wait`; call it before waiting for whoever may be in one."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all processes."""
        self.stop_waiting()
        self._closed.set()
        self._thread.join()
        self._folder.cleanup()

    def _supervise(self) -> None:
        try:
            for server in self._servers:
                self._start(server)
            while not self._closed.is_set():
                self._read()
                if self.failure:
                    self._unblock()
                else:
                    self._kill_silent()
        except Exception as error:
            logger.exception("The supervision of the data service failed.")
            self._fail(f"The data service cannot be supervised any more: {error}.")
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            self._fork_server.close()

    def _read(self) -> None:
        child, message = self._fork_server.next_message(_POLL_SECONDS)
        server = next((server for server in self._servers if server.child is child), None)
        if child is None or server is None:
            return
        if message is None:
            server.child = server.process_id = None
            if not self._closed.is_set() and not self.failure:
                self._has_ended(server, child)
            return
        server.last_sign = time.monotonic()
        if server.process_id is None:
            with self._changed:
                server.process_id, server.serves_since = message, server.last_sign
                self._changed.notify_all()

    def _has_ended(self, server: _Server, child: ForkedChild) -> None:
        """Starts a process again (all of them, if what makes them has ended with it), or gives up."""
        words = last_words(self._fork_server.end_of_log(child))
        lost = [server]
        if not self._fork_server.running:
            lost = self._servers
            self._fork_server.close()
            self._fork_server = self._new_fork_server()
        for each in lost:
            self._note_restart(each, child.how_it_ended(), words)
        if not self.failure:
            for each in lost:
                self._start(each)

    def _note_restart(self, server: _Server, how: str, words: str) -> None:
        now = time.monotonic()
        server.restarts = [then for then in server.restarts if now - then < _CALM_SECONDS]
        if len(server.restarts) == MAX_RESTARTS:
            self._fail(
                f"{server.name} {how}, as after each of {MAX_RESTARTS} restarts: the training batches cannot be "
                "prepared. Train without data_service to see whether the data are the reason, or give the machine more "
                f"memory. Its last words: {words}"
            )
            return
        server.restarts.append(now)
        logger.warning(
            f"{server.name} {how}, and is started again ({len(server.restarts)} of {MAX_RESTARTS}). It prepares its "
            "batches of this epoch again; training gets those that it has not had."
        )

    def _start(self, server: _Server) -> None:
        server.last_sign, server.process_id = time.monotonic(), None
        server.child = self._fork_server.start(server.kind, _PROGRAM, [server.task], {})

    def _kill_silent(self) -> None:
        for server in self._servers:
            if server.process_id and server.child and time.monotonic() - server.last_sign > _SILENT_SECONDS:
                logger.warning(f"{server.name} has given no sign of life for {_SILENT_SECONDS:g} seconds.")
                self._fork_server.kill(server.child)
                server.last_sign = time.monotonic()

    def _fail(self, failure: str) -> None:
        with self._changed:
            self.failure = failure
            self._changed.notify_all()

    def _unblock(self) -> None:
        """Replaces the dispatchers by new ones, which do not know who waits for batches and so answer with an error.

        Again and again: an epoch may be on its way to the dispatchers at any time.
        """
        dispatcher = self._servers[0]
        if not self._fork_server.running:
            os.kill(os.getpid(), signal.SIGTERM)  # whoever waits for a batch cannot be told otherwise
            self._closed.wait()
        elif dispatcher.child is None:
            dispatcher.task = self._dispatchers()
            self._start(dispatcher)
        elif dispatcher.process_id and time.monotonic() - dispatcher.serves_since > _UNBLOCK_SECONDS:
            self._fork_server.kill(dispatcher.child)

    def _dispatchers(self) -> str:
        folder = Path(self._folder.name, f"dispatchers-{next(self._generation)}")
        return json.dumps({"dispatchers": {port: str(folder / str(port)) for port in self._ports}})

    def _new_fork_server(self) -> ForkServer:
        return ForkServer(["tensorflow", _PROGRAM], folder=Path(self._folder.name), environment=_ENVIRONMENT)


def main(connection: Connection, arguments: Sequence[str]) -> int:
    """What a process runs, made by the `ForkServer`: dispatchers, or one worker; returns the exit status.

    It sends its process id when it listens, and every second from then on, until the parent is gone.

    Args:
        connection: to the parent.
        arguments: one, a JSON object: `{"dispatchers": {PORT: FOLDER}}`, or `{"worker": PORT, "dispatcher": PORT}`.
    """
    task = json.loads(arguments[0])
    with servers_on_loopback():
        servers = _servers(task)
    try:
        while True:
            connection.send(os.getpid())
            time.sleep(SIGN_OF_LIFE_SECONDS)
    except OSError:  # nobody is there any more
        return 0
    finally:
        del servers


def _servers(task: dict[str, Any]) -> list[Any]:
    if "dispatchers" in task:
        configs = [
            _SERVICE.DispatcherConfig(port=int(port), protocol=PROTOCOL, work_dir=folder, fault_tolerant_mode=True)
            for port, folder in task["dispatchers"].items()
        ]
        return [_SERVICE.DispatchServer(config) for config in configs]
    config = _SERVICE.WorkerConfig(
        dispatcher_address=f"{HOST}:{task['dispatcher']}",
        worker_address=f"{HOST}:{task['worker']}",
        port=task["worker"],
        protocol=PROTOCOL,
        heartbeat_interval_ms=_HEARTBEAT_MS,
    )
    return [_SERVICE.WorkerServer(config)]
