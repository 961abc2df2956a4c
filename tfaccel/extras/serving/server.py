"""`serve`: runs a server for models, with its addresses, until its graceful shutdown.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from tfaccel.argument_types import checks_types
from tfaccel.errors import ServeError
from tfaccel.exporting.saved_model_files import is_version
from tfaccel.extras.serving.http_protocol import Addresses, HttpProtocol, bound_socket, has_arrived, listen, target
from tfaccel.extras.serving.messages import Answer, BodyRoom, Request, RequestError, Send, error_answer, write_json
from tfaccel.extras.serving.metrics import CONTENT_TYPE, Metrics
from tfaccel.extras.serving.model_config import ModelConfig
from tfaccel.extras.serving.models import ModelApi, Models
from tfaccel.extras.serving.options import ServeOptions
from tfaccel.extras.serving.versions import Versions, keep_blocks_apart
from tfaccel.known_names import suggests_names

if TYPE_CHECKING:
    from tfaccel.extras.serving.grpc_server import GrpcServer


logger = logging.getLogger("tfaccel")

_IDLE_SECONDS = 75  # idle connections are closed after this time
_DOOR_SECONDS = 1.0  # at shutdown, how long new connections are still accepted
_TURN_SECONDS = 0.005  # polling interval at shutdown
# The model's thread takes the GIL many times per batch; with the default it could wait 5 ms each time.
_SWITCH_SECONDS = 0.0005
_PREFLIGHT_SECONDS = 600  # how long browsers cache a CORS preflight response

Ready = Callable[[Addresses, Versions], None]
_ADDRESS = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[^/:]+)|/labels/(?P<label>[^/:]+))?"
    r"(?::(?P<verb>predict|classify|regress)|/(?P<metadata>metadata))?",
    re.IGNORECASE,
)
_COUNTS = ("/metrics", "/monitoring/prometheus/metrics")
_OTHERS = {"/healthz", "/readyz", *_COUNTS}
_READING = ("GET", "HEAD")


@suggests_names
@checks_types(ServeError, checks_numbers=True)
def serve(
    configs: Sequence[ModelConfig],
    options: ServeOptions,
    *,
    config_file: Path | None = None,
    on_ready: Ready = lambda addresses, versions: None,
) -> None:
    """Serves models until the process gets SIGTERM or SIGINT; pending requests are answered first.

    Args:
        configs: the models.
        options: where to listen, and limits.
        config_file: the file of the configurations; reloaded when it changes.
        on_ready: called for each model with the server's addresses once its requests are answered.

    Raises:
        ServeError: if there is no model, an address is taken, or a model cannot be served.
    """
    if not configs and config_file is None:
        raise ServeError("There is no model to serve. Give the configuration of one: `configs=[ModelConfig(...)]`.")
    with ExitStack() as stack:
        listening = stack.enter_context(bound_socket(options.host, options.port))
        listen(listening, options.host, options.port)
        metrics, room = Metrics(), BodyRoom()
        models = Models(configs, options, metrics)
        grpc_server = None
        if options.grpc_port is not None:
            from tfaccel.extras.serving.grpc_server import GrpcServer

            reserved = stack.enter_context(bound_socket(options.host, options.grpc_port, flag="grpc_port"))
            grpc_server = GrpcServer(models, options, reserved, room=room)
        server = _Server(_config(App(models, metrics, room), options), listening, options.stop_seconds, grpc_server)
        _answer(server, models, options, config_file, on_ready)


def _config(app: Any, options: ServeOptions) -> uvicorn.Config:
    if options.allowed_origins:
        from starlette.middleware.cors import CORSMiddleware

        app = CORSMiddleware(
            app,
            allow_origins=list(options.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            max_age=_PREFLIGHT_SECONDS,
        )
    protocol: Any = partial(HttpProtocol, head_seconds=options.head_seconds)
    return uvicorn.Config(
        app,
        http=protocol,
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=max(1, round(options.stop_seconds)),
        ws="none",
        proxy_headers=False,
    )


def _answer(server: _Server, models: Models, options: ServeOptions, config_file: Path | None, on_ready: Ready) -> None:
    """Answers requests until shutdown; /readyz and requests for a model get 503 until it is loaded."""
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    keep_blocks_apart()
    gc.collect()
    gc.freeze()  # loaded objects stay; scanning them in each collection would pause requests for 0.3 s
    before = _end_at_signals(server)
    faults: list[BaseException] = []

    def load() -> None:
        models.start(loaded=partial(on_ready, server.addresses), failed=partial(_give_up, server, faults))
        if config_file is not None:
            models.follow(config_file, options.poll_seconds)

    server.on_start = load
    try:
        server.run(sockets=[server.listening])
    except KeyboardInterrupt:
        logger.info("Stopped by the keyboard")
    finally:
        models.close()
        sys.setswitchinterval(switch_seconds)
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)
    if faults:
        raise faults[0]


class _Server(uvicorn.Server):
    """A server that answers all pending requests before it stops."""

    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, stop_seconds: float, grpc_server: GrpcServer | None
    ) -> None:
        super().__init__(config)
        self.listening, self._stop_seconds, self._grpc_server = listening, stop_seconds, grpc_server
        self.addresses = Addresses(f"http://{target(listening)}", None if grpc_server is None else grpc_server.target)
        self.on_start: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept requests, and reports it."""
        await super().startup(sockets)
        if self._grpc_server is not None:
            await self._grpc_server.start()
        self.on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops both protocols, after they have answered pending requests."""
        if self._grpc_server is None:
            await self._end_http(sockets)
        else:
            await asyncio.gather(self._end_http(sockets), self._grpc_server.stop(lambda: self.force_exit))

    async def _end_http(self, sockets: list[socket.socket] | None) -> None:
        """Accepts pending connections, reads what has arrived on them, then shuts down as uvicorn does.

        Closing a connection with unread data resets it, as does never accepting it: clients would lose answers to
        complete requests.
        """
        start = time.monotonic()
        while has_arrived(self.listening.fileno()) and time.monotonic() < start + _DOOR_SECONDS:
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        while self.server_state.connections and time.monotonic() < start + self._stop_seconds and not self.force_exit:
            for connection in list(self.server_state.connections):
                if isinstance(connection, HttpProtocol):
                    connection.end()
            await asyncio.sleep(_TURN_SECONDS)
        self.config.timeout_graceful_shutdown = max(1, round(start + self._stop_seconds - time.monotonic()))
        await super().shutdown(sockets)


def _give_up(server: uvicorn.Server, faults: list[BaseException], error: BaseException) -> None:
    faults.append(error)
    server.should_exit = True


def _end_at_signals(server: uvicorn.Server) -> dict[int, Any]:
    """Makes the signal harmless that uvicorn sends itself again after its graceful shutdown."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}


class App:
    """The ASGI application.

    Args:
        models: the served models.
        metrics: counts requests.
        room: what the bodies of all requests share.
    """

    def __init__(self, models: Models, metrics: Metrics, room: BodyRoom) -> None:
        self._models, self._metrics, self._room = models, metrics, room

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Answers one request."""
        request = Request(scope["method"], scope["path"], dict(scope["headers"]), receive, self._room)
        try:
            answer = await self._answer(request)
        except RequestError as error:
            answer = error_answer(error)
        await answer.send(request, send)

    async def _answer(self, request: Request) -> Answer:
        if request.path in _OTHERS:
            _check_method(request, _READING)
            return self._other(request.path)
        found = _ADDRESS.fullmatch(request.path)
        if found is None:
            raise _malformed(request, 404)
        verb = found["verb"]
        _check_method(request, ("POST",) if verb else _READING)
        api = self._models.api(found["name"])
        method = verb.lower() if verb else "metadata" if found["metadata"] else "status"
        return await api.counted(method, _of_version(api, method, found, request))

    def _other(self, path: str) -> Answer:
        if path == "/healthz":
            return Answer(b'{"status":"alive"}')
        if path == "/readyz":
            ready = self._models.is_ready
            return Answer(write_json({"ready": ready}), 200 if ready else 503)
        return Answer(self._metrics.text(), media_type=CONTENT_TYPE)


async def _of_version(api: ModelApi, method: str, found: re.Match[str], request: Request) -> Answer:
    return await api.answer(method, _version(found, api), request)


def _version(found: re.Match[str], api: ModelApi) -> int | None:
    """The version in a URL; None if there is none."""
    if found["label"] is not None:
        return api.versions.labelled(found["label"])
    if found["version"] is None:
        return None
    if not is_version(found["version"]):
        raise RequestError(400, f"A version is a whole number. Received: {found['version']!r:.60}.")
    return int(found["version"])


def _check_method(request: Request, allowed: tuple[str, ...]) -> None:
    if request.method not in allowed:
        raise _malformed(request, 405, {"Allow": ", ".join(allowed)})


def _malformed(request: Request, status: int, headers: dict[str, str] | None = None) -> RequestError:
    return RequestError(status, f"Malformed request: {request.method} {request.path}", headers)
