"""JSON in the dialect of TensorFlow Serving's REST protocol: with NaN and Infinity, and bytes as {"b64": ...}."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from tfaccel.extras.serving.request_error import RequestError

_KEYS = (b'"context"', b'"examples"', b'"inputs"', b'"instances"', b'"signature_name"')  # of the protocol
_BINARY_SUFFIX = "_bytes"  # the protocol encodes outputs with such names as bytes


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a request.

    Raises:
        RequestError: 400, if it is not one; the message says where.
    """
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
