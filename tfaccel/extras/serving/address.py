"""The addresses that a server listens on."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from tfaccel.errors import ServeError

_BACKLOG = 2048


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

    Raises:
        ServeError: if the address is taken or not this machine's.
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
