"""The error of a request, by the fault of the client or of the server."""

from __future__ import annotations

from collections.abc import Mapping


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP: 400 (malformed), 404 (no such model or version), 413 (too large), 429 (too many) or 503.
        message: where the error is, what was received and what was expected.
        headers: more headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
