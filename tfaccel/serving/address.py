"""The address that a server listens on."""

from __future__ import annotations

import errno
import socket

from tfaccel.errors import ServeError

_BACKLOG = 2048


def check_address(host: str, port: int) -> None:
    """Raises ServeError, before a model is loaded, for an address that is taken or not this machine's."""
    bound_socket(host, port).close()


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket with an address of its own, not listening yet.

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
        raise _refused(error, host, port) from error
    return made


def listen(listening: socket.socket, host: str, port: int) -> None:
    """Takes connections from now on.

    Raises:
        ServeError: if the address was taken meanwhile.
    """
    try:
        listening.listen(_BACKLOG)
    except OSError as error:
        raise _refused(error, host, port) from error


def _refused(error: OSError, host: str, port: int) -> ServeError:
    if error.errno == errno.EADDRINUSE:
        return ServeError(f"Port {port} of {host} is taken. Choose another with --port, or --port=0 for a free one.")
    if error.errno == errno.EACCES:
        return ServeError(f"Port {port} of {host} needs more rights. Choose one above 1023 with --port.")
    return ServeError(f"Cannot listen on port {port} of {host}: {error.strerror or error}.")
