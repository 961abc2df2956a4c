"""`serve`: a server for one model, from its start to its graceful end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from tfaccel.serving.address import bound_socket, listen
from tfaccel.serving.app import ModelApi
from tfaccel.serving.metrics import Metrics
from tfaccel.serving.options import ServeOptions
from tfaccel.serving.servable import Servable
from tfaccel.serving.versions import Versions

logger = logging.getLogger("tfaccel")

_IDLE_SECONDS = 75  # after which a connection without requests is closed
# At the end, how often and how long the event loop goes round before connections that look idle are closed.
_LAST_TURNS, _LAST_TURN_SECONDS = 5, 0.05
# The model's thread asks for Python's lock many times in a batch; the default of 5 ms would be waited for each time.
_SWITCH_SECONDS = 0.0005


def serve(
    folder: Path, name: str, options: ServeOptions, *, on_ready: Callable[[str, Versions], None] = lambda url, v: None
) -> None:
    """Serves a SavedModel until the process gets SIGTERM or SIGINT; requests that were taken are answered first.

    Arguments:
        folder: of the model's versions, which is watched, or of one SavedModel.
        name: of the model in addresses.
        options: where to listen, and limits.
        on_ready: called with the server's address once requests are answered.

    Raises:
        ServeError: if the address is taken, or there is no model that can be served.
    """
    listening = bound_socket(options.host, options.port)
    try:
        listen(listening, options.host, options.port)
        metrics = Metrics(name)
        versions = Versions(
            name, folder, lambda path, version: Servable(
                path, version, max_batch_size=options.max_batch_size, observe=metrics.batch
            ), max_versions=options.max_versions,
        )  # fmt: skip
        _answer(versions, options, metrics, listening, on_ready)
    finally:
        listening.close()


def _answer(versions: Versions, options: ServeOptions, metrics: Metrics, listening: socket.socket,
            on_ready: Callable[[str, Versions], None]) -> None:  # fmt: skip
    """Answers requests until the end; /readyz and all that needs a model with 503 until one is loaded."""
    api = ModelApi(versions, options, metrics)
    config = uvicorn.Config(
        api.app(), log_config=None, log_level="warning", access_log=False, lifespan="off", server_header=False,
        timeout_keep_alive=_IDLE_SECONDS, timeout_graceful_shutdown=max(1, round(options.stop_seconds)), ws="none",
        proxy_headers=False,
    )  # fmt: skip
    server = _LastTurnsServer(config)
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # what is loaded stays; to look through it, now and then, would make all requests wait for 0.3 s
    before = _end_at_signals(server)
    faults: list[BaseException] = []
    versions.watch(
        options.poll_seconds, loaded=lambda: on_ready(url, versions), failed=partial(_give_up, server, faults)
    )
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        logger.info("Stopped by the keyboard")
    finally:
        versions.stop()
        api.close()
        sys.setswitchinterval(switch_seconds)
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)
    if faults:
        raise faults[0]


class _LastTurnsServer(uvicorn.Server):
    """Takes, before it closes, the requests that have been sent already, but not been read yet."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends as uvicorn does, after some more turns of the event loop."""
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(_LAST_TURN_SECONDS)
        await super().shutdown(sockets)


def _give_up(server: uvicorn.Server, faults: list[BaseException], error: BaseException) -> None:
    faults.append(error)
    server.should_exit = True


def _end_at_signals(server: uvicorn.Server) -> dict[int, Any]:
    """Lets uvicorn's graceful end be the end, from now on: it sends itself the signal again when it is done."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
