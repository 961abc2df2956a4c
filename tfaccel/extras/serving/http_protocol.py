"""Addresses to listen on, and uvicorn's HTTP connections with limits, and a shutdown that loses no request.

Beyond uvicorn: too large or too slow request heads are refused, a half-closed client still gets its answer, errors are
JSON, and a connection closes once all requests that arrived on it are answered.
"""

from __future__ import annotations

import asyncio
import errno
import http
import select
import socket
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tfaccel.errors import ServeError
from tfaccel.extras.serving.messages import write_json

MAX_HEAD_BYTES = 64 * 2**10
_MAX_DISCARDED_BYTES = 64 * 2**20
_LINGER_SECONDS = 2.0  # how long a client that is still sending can read the refusal
_BAD_REQUEST = (400, "Invalid HTTP request received.")
_BACKLOG = 2048


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        head_seconds: how long the head of a request may take to arrive.
    """

    def __init__(self, *args: Any, head_seconds: float, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_in_head = False  # a head has partly arrived
        self._head_bytes = 0
        self._refusal = _BAD_REQUEST
        self._discarded_bytes: int | None = None  # None while data are being read
        self._closes = False  # closes after the last pending answer

    def connection_made(self, transport: Any) -> None:
        """Waits for the first request, with a timeout."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cleans up after the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads the data, unless they are to be discarded."""
        if self._discarded_bytes is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _MAX_DISCARDED_BYTES:
                self.transport.close()
            return
        goes_on = self._is_in_head
        super().data_received(data)
        if goes_on and self._is_in_head and self._discarded_bytes is None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, _too_large())

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keeps a half-closed connection open until the pending answers are sent."""
        if self._discarded_bytes is None and not self.transport.is_closing():
            if self._is_in_head:
                self._refuse(400, "The request ended within its headers.")
            elif self._is_answering() and self.cycle.more_body:
                self._refuse(400, "The body ended before its announced length.")
            elif self._is_answering():
                self._closes = True
                self.cycle.keep_alive = False
            else:
                return None
        return not self.transport.is_closing()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        """A part of the URL has arrived."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has arrived."""
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._stop_timer()
        self._is_in_head = False
        super().on_headers_complete()
        if self._closes:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        """An answer has been written."""
        is_last = not self.pipeline
        super().on_response_complete()
        if self._closes and is_last and not self._is_in_head:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuses invalid HTTP, or a head that is too large."""
        del msg
        self._refuse(*self._refusal)

    def end(self) -> None:
        """Closes the connection once all requests on it have been answered; call it repeatedly."""
        self._closes = True
        if self._discarded_bytes is not None and not self._is_answering():
            self.transport.close()
        elif self._is_answering():
            self.cycle.keep_alive = False
        elif not self._is_in_head and not has_arrived(self.transport.get_extra_info("socket").fileno()):
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answers with an error, unless earlier requests are pending; stops reading."""
        self._stop_timer()
        self._is_in_head, self._closes, self._discarded_bytes = False, True, 0
        if self.pipeline:
            if self.cycle.more_body:  # it is the last one of the pipeline, and will never be complete
                self.pipeline.popleft()
            return
        if self._is_answering():
            if not self.cycle.more_body:
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        body = write_json({"error": message})
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _count(self, num_bytes: int) -> None:
        """Counts the bytes of a head, which may have arrived together with other data."""
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refusal = (431, _too_large())
            raise ValueError("The head is too large.")  # The parser stops, and calls send_400_response.

    def _start_timer(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(self._head_seconds, self._is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _is_late(self) -> None:
        if self._is_answering():  # The rest of the next head may have arrived without being read.
            self._start_timer()
        elif self._is_in_head:
            self._refuse(408, f"The headers were not there after {self._head_seconds:g} seconds.")
        else:
            self.transport.close()


def has_arrived(descriptor: int) -> bool:
    """Whether a socket is readable: has bytes, or, if it listens, a pending connection."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(0))


def _too_large() -> str:
    return f"The headers must have at most {MAX_HEAD_BYTES} bytes."


@dataclass(frozen=True)
class Addresses:
    """The addresses that a server listens on.

    Args:
        url: the REST address, such as "http://127.0.0.1:8501".
        grpc: the gRPC address, such as "127.0.0.1:8500"; None without gRPC.
    """

    url: str
    grpc: str | None = None


def target(listening: socket.socket) -> str:
    """A socket's address and port, formatted for URLs."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(host: str, port: int, *, flag: str = "port") -> None:
    """Raises ServeError, before a model is loaded, for an address that is taken or not this machine's."""
    bound_socket(host, port, flag=flag).close()


def bound_socket(host: str, port: int, *, flag: str = "port") -> socket.socket:
    """A socket bound to an address, not listening yet.

    Args:
        host: the address.
        port: the port; 0 for any free one.
        flag: the flag that sets the port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServeError(f"There is no address {host!r} to listen on: {error.strerror or error}.") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise _refused(error, host, port, flag) from error
    return made


def listen(listening: socket.socket, host: str, port: int) -> None:
    """Starts to accept connections.

    Raises:
        ServeError: if the address was taken meanwhile.
    """
    try:
        listening.listen(_BACKLOG)
    except OSError as error:
        raise _refused(error, host, port, "port") from error


def _refused(error: OSError, host: str, port: int, flag: str) -> ServeError:
    if error.errno == errno.EADDRINUSE:
        return ServeError(
            f"Port {port} of {host} is taken. Choose another with --{flag}, or --{flag}=0 for a free one."
        )
    if error.errno == errno.EACCES:
        return ServeError(f"Port {port} of {host} needs more privileges. Choose one above 1023 with --{flag}.")
    return ServeError(f"Cannot listen on port {port} of {host}: {error.strerror or error}.")
