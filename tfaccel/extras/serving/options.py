"""The noun `ServeOptions`: where a server listens, and its limits."""

from __future__ import annotations

import re

from tfaccel.errors import ServeError
from tfaccel.short_repr import noun

_ORIGIN = re.compile(r"https?://[^/\s?#]+")


@noun(error=ServeError)
class ServeOptions:
    """Where a server listens, and its limits.

    Attributes:
        host: the address to listen on; the default accepts connections from this machine only.
        port: the REST port; 0 for any free one.
        grpc_port: the gRPC port, at the same address; 0 for any free one, None for no gRPC.
        max_batch_size: maximum number of rows per call of the model; 1 for no batching.
        batch_wait_ms: how long a request waits for others to be batched with, in milliseconds.
        max_queue: maximum number of waiting requests; others are answered with 429.
        max_request_bytes: the largest body of a request; larger ones are answered with 413. Bodies that are arriving
            take at most 16 times as much together; more are answered with 429. A body over gRPC that takes longer than
            a quarter of a second counts as one of the largest size, since its size is not known.
        body_seconds: how long the body of a request may take to arrive; slower ones are answered with 408.
        head_seconds: how long the headers of a request may take to arrive; slower ones are answered with 408.
        allowed_origins: origins allowed by CORS, such as "https://example.org"; "*" for all.
        allow_file_operations: whether models may hold operations that are not known to be safe, such as file access.
        poll_seconds: how often folders of versions and the configuration file are checked.
        max_versions: number of newest versions to serve; 0 for all.
        stop_seconds: how long requests in progress may take after SIGTERM.

    Raises:
        ServeError: for an invalid value.

    Example:
        >>> ServeOptions(max_batch_size=0)
        Traceback (most recent call last):
        ...
        tfaccel.errors.ServeError: `max_batch_size` must be a whole number of at least 1. Received: max_batch_size=0.
    """

    host: str = "127.0.0.1"
    port: int = 8501
    grpc_port: int | None = None
    max_batch_size: int = 32
    batch_wait_ms: float = 2.0
    max_queue: int = 256
    max_request_bytes: int = 32 * 2**20
    body_seconds: float = 60.0
    head_seconds: float = 10.0
    allowed_origins: tuple[str, ...] = ()
    allow_file_operations: bool = False
    poll_seconds: float = 1.0
    max_versions: int = 0
    stop_seconds: float = 30.0

    def __post_init__(self) -> None:
        least = {} if self.grpc_port is None else {"grpc_port": 0}
        least |= {"port": 0, "max_batch_size": 1, "max_queue": 1, "max_request_bytes": 1, "max_versions": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if type(value) is not int or value < lowest:
                raise ServeError(f"`{name}` must be a whole number of at least {lowest}. Received: {name}={value!r}.")
        for name in ("port", "grpc_port"):
            if (getattr(self, name) or 0) > 65535:
                raise ServeError(f"`{name}` must be at most 65535. Received: {name}={getattr(self, name)}.")
        if self.port and self.port == self.grpc_port:
            raise ServeError(f"`grpc_port` must be another than `port`. Received: {self.port} for both.")
        for name in ("batch_wait_ms", "body_seconds", "head_seconds", "poll_seconds", "stop_seconds"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 3_600_000:
                raise ServeError(f"`{name}` must be a number from 0 to 3600000. Received: {name}={value!r}.")
        for name in ("body_seconds", "head_seconds"):
            if not getattr(self, name) > 0:
                raise ServeError(f"`{name}` must be above 0. Received: {name}={getattr(self, name)!r}.")
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ServeError(
                    "`allowed_origins` must be origins such as https://example.org:8080, or *. "
                    f"Received: allowed_origins={origin!r}."
                )
        if not isinstance(self.host, str) or not self.host:
            raise ServeError(f"`host` must be an address. Received: host={self.host!r}.")
