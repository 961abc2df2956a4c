"""A process of the tf.data service, made by a `ForkServer`: dispatchers, or one worker.

Its only argument is a JSON object: `{"dispatchers": {PORT: FOLDER}}`, or `{"worker": PORT, "dispatcher": PORT}`. It
sends its parent its process id when it listens, and every second from then on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import tensorflow as tf

from tfaccel.training.private.private_workers import servers_on_loopback

HOST = "127.0.0.1"
PROTOCOL = "grpc"
SIGN_OF_LIFE_SECONDS = 1.0
_SERVICE = tf.data.experimental.service  # loaded before the fork
_HEARTBEAT_MS = 500  # from a worker to its dispatcher, which may have been started again


def main(connection: Connection, arguments: Sequence[str]) -> int:
    """Serves until the parent is gone; returns the exit status."""
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
