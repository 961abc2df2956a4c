"""The body of a request, up to a limit."""

from __future__ import annotations

from starlette.requests import Request

from tfaccel.serving.request_error import RequestError

_MOST_DISCARDED_BYTES = 64 * 2**20


async def read_body(request: Request, most_bytes: int) -> bytes:
    """The body of a request, whether its length was announced or not.

    Raises:
        RequestError: 413, if it is larger than allowed; of what comes behind, no more than 64 MiB is read.
    """
    too_large = RequestError(
        413, f"The body must have at most {most_bytes} bytes; ask for fewer rows at once.", {"Connection": "close"}
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most_bytes:
        await _discard(request, int(announced))
        raise too_large
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError(400, "The body must not be compressed.")
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length <= most_bytes:
            parts.append(part)
        elif length > most_bytes + _MOST_DISCARDED_BYTES:
            break
    if length > most_bytes:
        raise too_large
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _discard(request: Request, length: int) -> None:
    """Reads a body that is too large and forgets it: clients that are still writing would not see the answer."""
    waits = request.headers.get("expect", "").lower() == "100-continue"  # for leave to send it: it need not
    if length <= _MOST_DISCARDED_BYTES and not waits:
        async for _ in request.stream():
            pass
