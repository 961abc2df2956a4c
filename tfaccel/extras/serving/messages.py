"""HTTP requests and responses over ASGI: bodies up to a limit, compressed or not."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfaccel.extras.serving.json_text import write_json
from tfaccel.extras.serving.request_error import RequestError

JSON = "application/json"
_MAX_DISCARDED_BYTES = 64 * 2**20
_MIN_COMPRESSED_BYTES = 1024  # smaller answers are not compressed
_LARGE_BYTES = 64 * 2**10  # larger bodies are compressed in a thread
_GZIP = 31  # zlib's number for the format
_CLOSE = {"Connection": "close"}
_BODIES_AT_ONCE = 16  # bodies of the largest size that may be arriving at once

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@dataclass
class BodyRoom:
    """The bytes of all bodies that are arriving, which share one limit: clients may stop short of what they announce.

    Attributes:
        taken: bytes that have arrived of bodies that are not complete, or that are set aside for them.
    """

    taken: int = 0

    def take(self, num_bytes: int, max_bytes: int) -> None:
        """Raises RequestError, 429, if bodies would take more than that of so many bodies of `max_bytes`."""
        if self.taken + num_bytes > _BODIES_AT_ONCE * max_bytes:
            raise RequestError(429, "The bodies of other requests are taking all room for bodies; try again.", _CLOSE)
        self.taken += num_bytes


@dataclass(frozen=True)
class Request:
    """A request, whose body has not been read.

    Args:
        method: such as "POST".
        path: the path without the query string.
        headers: by lower-case name.
        receive: returns the body, in parts.
        room: what the bodies of all requests share.
    """

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    receive: Receive
    room: BodyRoom = field(default_factory=BodyRoom)

    async def body(self, max_bytes: int, seconds: float) -> bytes:
        """The body, with or without a known length, decompressed if needed.

        Raises:
            RequestError: 413, if it is too large (of the rest, at most 64 MiB is read); 408, if it takes too long; 429,
                if other bodies take all room; 400, if it ends too early; 415, if it is compressed otherwise than with
                gzip.
        """
        encoding = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"identity", b"gzip", b"x-gzip", b""):
            raise RequestError(415, f"The body may be compressed with gzip only. Received: {encoding!r:.40}.", _CLOSE)
        try:
            async with asyncio.timeout(seconds):
                body = await self._whole_body(max_bytes)
        except TimeoutError as error:
            raise RequestError(408, f"The body was not there after {seconds:g} seconds.", _CLOSE) from error
        return body if encoding in (b"identity", b"") else await asyncio.to_thread(_decompressed, body, max_bytes)

    async def _whole_body(self, max_bytes: int) -> bytes:
        announced = self.headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > max_bytes:
            waits = (
                self.headers.get(b"expect", b"").lower() == b"100-continue"
            )  # for "100 Continue", which need not be sent
            if int(announced) <= _MAX_DISCARDED_BYTES and not waits:
                await self._discard()  # clients that are still writing would not see the answer
            raise _too_large(max_bytes)
        parts: list[bytes] = []
        try:
            await self._receive_parts(parts, max_bytes)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self.room.taken -= sum(map(len, parts))

    async def _receive_parts(self, parts: list[bytes], max_bytes: int) -> None:
        """Adds the parts of the body, whose bytes are taken from the room."""
        length = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise RequestError(400, "The client went away.", _CLOSE)
            part = message.get("body", b"")
            length += len(part)
            if length <= max_bytes:
                self.room.take(len(part), max_bytes)
                parts.append(part)
            elif length > max_bytes + _MAX_DISCARDED_BYTES:
                break
            if not message.get("more_body", False):
                break
        if length > max_bytes:
            raise _too_large(max_bytes)

    async def _discard(self) -> None:
        message = await self.receive()
        while message["type"] != "http.disconnect" and message.get("more_body", False):
            message = await self.receive()


@dataclass(frozen=True)
class Answer:
    """A response.

    Args:
        body: its content.
        status: of HTTP.
        headers: more headers.
        media_type: of the content.
    """

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = JSON

    async def send(self, request: Request, send: Send) -> None:
        """Sends the response; compressed, if it is large and the client accepts that."""
        body, more = self.body, dict(self.headers)
        if len(body) >= _MIN_COMPRESSED_BYTES and _takes_gzip(request.headers.get(b"accept-encoding", b"")):
            large = len(body) > _LARGE_BYTES
            body = await asyncio.to_thread(_compressed, body) if large else _compressed(body)
            more |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", self.media_type.encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in more.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def error_answer(error: RequestError) -> Answer:
    """An error in TensorFlow Serving's format: JSON with the message under "error"."""
    return Answer(write_json({"error": error.message}), error.status, error.headers)


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(413, f"The body must have at most {max_bytes} bytes; ask for fewer rows at once.", _CLOSE)


def _decompressed(body: bytes, max_bytes: int) -> bytes:
    """The decompressed gzip data, at most `max_bytes` of it."""
    parts, room = [], max_bytes
    while body:
        stream = zlib.decompressobj(wbits=_GZIP)
        try:
            parts.append(stream.decompress(body, room + 1))
        except zlib.error as error:
            raise RequestError(400, f"The body is not compressed with gzip, as its header says: {error}.") from error
        room -= len(parts[-1])
        if room < 0:
            raise _too_large(max_bytes)
        if not stream.eof:
            raise RequestError(400, "The body is not compressed with gzip, as its header says: it ends too early.")
        body = stream.unused_data
    return b"".join(parts)


def _compressed(body: bytes) -> bytes:
    return zlib.compress(body, level=1, wbits=_GZIP)


def _takes_gzip(accepted: bytes) -> bool:
    for part in accepted.lower().split(b","):
        name, _, quality = part.replace(b" ", b"").partition(b";")
        if name in (b"gzip", b"*"):
            return quality not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
