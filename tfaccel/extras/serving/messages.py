"""HTTP requests and responses over ASGI, and JSON in the dialect of TensorFlow Serving's REST protocol.

Bodies have a limit, and may be compressed; the JSON has NaN and Infinity, and bytes as {"b64": ...}.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

JSON = "application/json"
_MAX_DISCARDED_BYTES = 64 * 2**20
_MIN_COMPRESSED_BYTES = 1024  # smaller answers are not compressed
_LARGE_BYTES = 64 * 2**10  # larger bodies are compressed in a thread
_GZIP = 31  # zlib's number for the format
_CLOSE = {"Connection": "close"}
_BODIES_AT_ONCE = 16  # bodies of the largest size that may be arriving at once

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
_KEYS = (b'"context"', b'"examples"', b'"inputs"', b'"instances"', b'"signature_name"')  # of the protocol
_BINARY_SUFFIX = "_bytes"  # the protocol encodes outputs with such names as bytes
_BLANKS = str.maketrans("", "", " \t\n\v\f\r")


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
    """A response."""

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


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a request."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        data = _read_with_nan(body, error)
    if not isinstance(data, dict):
        raise RequestError(400, f"The body must be a JSON object. Received: {_kind(data)}.")
    if any(body.count(key) > 1 for key in _KEYS):
        _check_keys(body)
    return data


def _check_keys(body: bytes) -> None:
    """Refuses an object with a duplicate key, which parsers treat differently."""

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise RequestError(400, f"The body has an object with the key {twice!r:.60} twice.")
        return found

    with contextlib.suppress(RecursionError):  # Such deep nesting is refused later.
        json.loads(body, object_pairs_hook=check)


def _read_with_nan(body: bytes, first: orjson.JSONDecodeError) -> Any:
    """Python's parser accepts NaN and Infinity, which standard JSON does not have."""
    fault: json.JSONDecodeError = first
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise RequestError(400, f"The body is no UTF-8: byte {error.start} cannot be read.") from error
    if b"NaN" in body or b"Infinity" in body:
        try:
            return json.loads(body, parse_float=_finite)
        except json.JSONDecodeError as error:
            fault = error
        except (ValueError, RecursionError):  # no UTF-8, numbers of thousands of digits, or lists in thousands of lists
            pass
    raise RequestError(400, f"The body is no JSON: {fault.msg} (line {fault.lineno}, column {fault.colno}).") from first


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError
    return value


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def write_json(value: Any) -> bytes:
    """A value with arrays of numbers in it as JSON."""
    try:
        if _is_finite(value):
            return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        pass
    return json.dumps(value, default=_as_list).encode()


def _is_finite(value: Any) -> bool:
    """Whether all values are finite; orjson writes null for others."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list) else True


def _as_list(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def predictions(outputs: Mapping[str, np.ndarray], *, in_rows: bool) -> dict[str, Any]:
    """The answer to a `:predict`.

    Args:
        outputs: arrays by name.
        in_rows: whether the request was in row format.

    Raises:
        RequestError: 400, for complex numbers.

    Example:
        >>> predictions({"a": np.array([1, 2]), "b": np.array([b"x", b"y"], object)}, in_rows=True)
        {'predictions': [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]}
    """
    plain = {name: _plain(name, array) for name, array in outputs.items()}
    if not in_rows:
        return {"outputs": next(iter(plain.values())) if len(plain) == 1 else plain}
    if len(plain) == 1:
        return {"predictions": next(iter(plain.values()))}
    columns = [
        value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else list(value) for value in plain.values()
    ]
    return {"predictions": [dict(zip(plain, row, strict=True)) for row in zip(*columns, strict=True)]}


def _plain(name: str, array: np.ndarray) -> Any:
    """Numbers unchanged, strings as nested lists."""
    if array.dtype.kind in "biuf":
        return np.ascontiguousarray(array) if array.ndim else array.item()
    if array.dtype.kind in "OS":
        return _texts(array.tolist(), is_binary=name.endswith(_BINARY_SUFFIX))
    if array.dtype.kind == "c":
        raise RequestError(
            400,
            f"The output {name!r} is {array.dtype.name}, and JSON has no complex numbers. Request it with gRPC, or "
            "export a model that returns real and imaginary parts.",
        )
    return _plain(name, array.astype(np.float32))


def _texts(value: Any, *, is_binary: bool) -> Any:
    if isinstance(value, list):
        return [_texts(item, is_binary=is_binary) for item in value]
    content = value if isinstance(value, bytes) else str(value).encode()
    if not is_binary:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(content).decode()}


def is_encoded(value: Any) -> bool:
    """Whether a value of a request stands for bytes."""
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def decoded(value: Any) -> bytes:
    """The decoded bytes of a value; whitespace and padding are ignored.

    Raises:
        ValueError: if it is not base64.

    Example:
        >>> decoded({"b64": "aW1hZ2U"})
        b'image'
    """
    text = value["b64"].translate(_BLANKS)
    if not text.endswith("="):
        text += "=" * (-len(text) % 4)
    return base64.b64decode(text, validate=True)
