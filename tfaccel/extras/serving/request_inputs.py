"""Converts the JSON of a request to the inputs of a signature, or to an error that says where the fault is."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tfaccel.extras.serving.base64_text import decoded, is_encoded
from tfaccel.extras.serving.request_error import RequestError
from tfaccel.extras.serving.tf_examples import serialized_examples
from tfaccel.known_names import did_you_mean

_MAX_SHOWN_LENGTH = 60  # characters of a value in a message
_MAX_DEPTH = 64  # nested lists; NumPy's maximum number of axes


@dataclass(frozen=True)
class InputSpec:
    """One input of a signature.

    Args:
        name: its name.
        shape: with the batch axis first; None entries for any length; None for any shape.
        dtype: the NumPy dtype; object for strings.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype

    @property
    def row(self) -> str:
        """A description of one row, for messages."""
        kind = 'texts, or bytes as {"b64": ...}' if self.dtype == object else self.dtype.name
        if self.shape is None or len(self.shape) == 1:
            return kind if self.shape is None else f"one {kind}" if self.dtype != object else 'a text, or {"b64": ...}'
        return f"{kind} of shape ({', '.join('any' if size is None else str(size) for size in self.shape[1:])})"


@dataclass(frozen=True)
class Inputs:
    """The inputs of a request.

    Args:
        arrays: by name.
        num_rows: the common length of the first axis; None if there is none.
        place: the key that holds them in the request: "instances" (rows), "inputs" (columns) or "examples".
    """

    arrays: dict[str, np.ndarray]
    num_rows: int | None
    place: str

    @property
    def in_rows(self) -> bool:
        """Whether the request was in row format."""
        return self.place != "inputs"


def read_inputs(data: Mapping[str, Any], specs: Mapping[str, InputSpec]) -> Inputs:
    """The arrays in the `instances` (rows) or `inputs` (columns) of a `:predict`.

    Raises:
        RequestError: 400, naming the instance and the input that do not fit the signature.
    """
    if ("instances" in data) == ("inputs" in data):
        found = "both" if "inputs" in data else "neither"
        raise RequestError(400, f'Give "instances" (rows) or "inputs" (columns). Received: {found}.')
    if "instances" in data:
        return _from_rows(data["instances"], specs, "instances")
    columns = data["inputs"]
    if not isinstance(columns, dict) or is_encoded(columns):
        if len(specs) != 1:
            raise RequestError(400, f'"inputs" must be an object with {_names(specs)}. Received: {_shown(columns)}.')
        columns = {next(iter(specs)): columns}
    check_names(columns, specs, '"inputs"')
    return in_columns({name: _column(columns[name], spec) for name, spec in specs.items()})


def in_columns(arrays: dict[str, np.ndarray]) -> Inputs:
    """Inputs in column format."""
    counts = {array.shape[0] if array.ndim else None for array in arrays.values()}
    return Inputs(arrays, counts.pop() if len(counts) == 1 else None, "inputs")


def read_examples(
    data: Mapping[str, Any], specs: Mapping[str, InputSpec], kinds: Mapping[str, str] | None = None
) -> Inputs:
    """The arrays in the `examples` of a `:classify`; `context` holds the features they share.

    Args:
        data: the request.
        specs: the inputs of the signature.
        kinds: types of features, if it takes serialized `tf.train.Example` messages; None if it takes tensors by name.

    Raises:
        RequestError: 400, as `read_inputs`.
    """
    examples, context = data.get("examples"), data.get("context", {})
    if not isinstance(examples, list) or not all(isinstance(example, dict) for example in examples):
        raise RequestError(400, '"examples" must be a list of objects, each with a value for every input.')
    if not isinstance(context, dict):
        raise RequestError(400, f'"context" must be an object. Received: {_shown(context)}.')
    twice = next((name for example in examples for name in example if name in context), None)
    if twice is not None:
        raise RequestError(400, f"{twice!r} stands in an example and in the context; it may stand in one of them.")
    if kinds is not None and specs:
        if not examples:
            raise RequestError(400, '"examples" must be a list of at least one. Received: [].')
        messages = serialized_examples([{**context, **example} for example in examples], kinds)
        return Inputs({next(iter(specs)): messages}, len(examples), "examples")
    singles = {name for name, spec in specs.items() if spec.shape is not None and spec.shape[1:] == (1,)}
    rows = [{**context, **example} for example in examples]
    for row in rows:  # The protocol accepts a value instead of a list of one.
        row |= {name: [row[name]] for name in singles if name in row and not isinstance(row[name], list)}
    return _from_rows(rows, specs, "examples")


def _from_rows(rows: Any, specs: Mapping[str, InputSpec], place: str) -> Inputs:
    if not isinstance(rows, list) or not rows:
        raise RequestError(400, f'"{place}" must be a list of at least one. Received: {_shown(rows)}.')
    if len(specs) == 1 and not (isinstance(rows[0], dict) and not is_encoded(rows[0])):
        ((name, spec),) = specs.items()
        return Inputs({name: _rows(rows, spec, place)}, len(rows), place)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(
                400, f"{place}[{number}] must be an object with {_names(specs)}. Received: {_shown(row)}."
            )
        check_names(row, specs, f"{place}[{number}]")
    arrays = {name: _rows([row[name] for row in rows], spec, place) for name, spec in specs.items()}
    return Inputs(arrays, len(rows), place)


def check_names(found: Mapping[str, Any], specs: Mapping[str, InputSpec], place: str) -> None:
    """Raises RequestError, 400, for a missing or unknown input."""
    missing = [name for name in specs if name not in found]
    unknown = [name for name in found if name not in specs]
    if missing or unknown:
        fault = f"there is no input {unknown[0]!r}" if unknown else f"it lacks {missing[0]!r}"
        hint = did_you_mean(unknown[0], missing or specs) if unknown else ""
        raise RequestError(400, f"{place}: {fault}.{hint} The signature takes {_names(specs)}.")


def _names(specs: Mapping[str, InputSpec]) -> str:
    return ", ".join(f"{name!r} ({spec.row})" for name, spec in specs.items())


def _column(values: Any, spec: InputSpec) -> np.ndarray:
    """A whole column; its first axis need not be rows."""
    if values == [] and spec.shape != ():
        raise RequestError(400, f'"inputs": {spec.name!r} has no rows. Give at least one: {spec.row}.')
    if spec.shape == () or not isinstance(values, list):
        array = _array(values, spec)
        if array is not None and (spec.shape is None or len(spec.shape) == array.ndim):
            return array
        raise RequestError(400, f'"inputs": {spec.name!r} must be a list of {spec.row}. Received: {_shown(values)}.')
    return _rows(values, spec, f"inputs.{spec.name}")


def _rows(values: list[Any], spec: InputSpec, place: str) -> np.ndarray:
    """The rows of one input as an array; locates the wrong one only after a failure."""
    array = _array(values, spec)
    if array is not None and fits(array.shape[1:], spec):
        return array
    for number, value in enumerate(values):
        single = _array(value, spec)
        if single is None or not fits(single.shape, spec):
            found = _shown(value) if single is None else f"shape {single.shape}"
            if spec.dtype == object and is_encoded(value):
                found += ", whose bytes are not in base64"
            raise RequestError(400, f"{place}[{number}]: input {spec.name!r} must be {spec.row}. Received: {found}.")
    raise RequestError(400, f"{place}: the rows of input {spec.name!r} must have one shape, {spec.row}.")


def fits(shape: tuple[int, ...], spec: InputSpec) -> bool:
    """Whether a row may have this shape."""
    if spec.shape is None:
        return True
    wanted = spec.shape[1:]
    return len(shape) == len(wanted) and all(b is None or a == b for a, b in zip(shape, wanted, strict=True))


def _array(values: Any, spec: InputSpec) -> np.ndarray | None:
    """Values as an array of the input's dtype; None if they are of another type, or ragged."""
    try:
        if spec.dtype == object:
            return np.array(_with_bytes(values, _MAX_DEPTH), dtype=object)
        if not _leaves(values) <= ({bool} if spec.dtype.kind == "b" else {int, float}):
            return None  # NumPy would pad each string to the longest.
        array = np.array(values)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}.get(spec.dtype.kind, "fiu")
    if array.size and array.dtype.kind not in kinds:
        return None
    if spec.dtype.kind in "iu" and array.size:
        limits = np.iinfo(spec.dtype)
        if array.min() < limits.min or array.max() > limits.max:
            return None
    with np.errstate(over="ignore"):
        found = array.astype(spec.dtype)
    if spec.dtype.kind == "f" and not np.isfinite(found).all() and np.isfinite(array[~np.isfinite(found)]).any():
        return None  # a number out of the dtype's range
    return found


def _leaves(value: Any) -> set[type]:
    """The types of values in nested lists."""
    found: set[type] = set()
    level = [value]
    while level:
        kinds = set(map(type, level))
        found |= kinds - {list}
        if list not in kinds:
            break
        level = list(chain.from_iterable(item for item in level if type(item) is list))
    return found


def _with_bytes(value: Any, depth: int) -> Any:
    """Nested strings, bytes and {"b64": ...} as nested bytes."""
    if isinstance(value, list) and depth:
        return [_with_bytes(item, depth - 1) for item in value]
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if is_encoded(value):
        return decoded(value)
    raise ValueError("no text")


def _shown(value: Any) -> str:
    text = _SHORT.repr(value)
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[: _MAX_SHOWN_LENGTH - 3]}..."


def _short() -> reprlib.Repr:
    """A `repr` that shortens values to fit a message."""
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict = 8, _MAX_SHOWN_LENGTH, _MAX_SHOWN_LENGTH
    short.maxstring = short.maxlong = short.maxother = 2 * _MAX_SHOWN_LENGTH
    return short


_SHORT = _short()
