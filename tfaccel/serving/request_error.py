"""What a client did wrong, or what the server cannot do for it now."""

from __future__ import annotations

from collections.abc import Mapping


class RequestError(Exception):
    """A request that is not answered as asked.

    Args:
        status: of HTTP: 400 (malformed), 404 (no such model or version), 413 (too large), 429 (too many) or 503.
        message: where the fault is, what was received and what was expected.
        headers: more headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
