"""Converts the JSON of a request to the inputs of a signature, or to an error that says where the fault is."""

from __future__ import annotations

import math
import re
import reprlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
import tensorflow as tf

from tfaccel.exporting.graph_check import GraphWalk, Place
from tfaccel.extras.serving.messages import RequestError, decoded, is_encoded
from tfaccel.known_names import did_you_mean

_MAX_SHOWN_LENGTH = 60  # characters of a value in a message
_MAX_DEPTH = 64  # nested lists; NumPy's maximum number of axes
INPUT_NAME = "inputs"  # of a signature that takes examples, in TensorFlow Serving
_KINDS = {tf.float32.as_datatype_enum: "float", tf.int64.as_datatype_enum: "int64", tf.string.as_datatype_enum: "bytes"}
_INT64 = np.iinfo(np.int64)
_HEAD = re.compile(rb'\s*\{\s*(?:"signature_name"\s*:\s*"([\w/.-]*)"\s*,\s*)?"(instances|inputs)"\s*:(?=\s*\[)')
_MIN_BYTES = 2048  # smaller bodies gain nothing
_BLANKS = b" \t\r\n"
# Characters of numbers become "0"; brackets become blanks.
_AS_ZEROS = bytes(ord("0") if byte in b"0123456789+-.eE" else byte for byte in range(256))
_WITHOUT_BRACKETS = bytes(ord(" ") if byte in b"[]" else byte for byte in range(256))


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
    """The arrays in the `instances` (rows) or `inputs` (columns) of a `:predict`."""
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


def example_kinds(walk: GraphWalk, signature: Any) -> dict[str, str] | None:
    """The features of a signature's examples: name -> "float", "int64" or "bytes", as far as known.

    Returns:
        None if the signature takes no examples: its input is not parsed as such, nor a string input with the name that
        TensorFlow Serving uses for examples.
    """
    if len(signature.inputs) != 1:
        return None
    ((name, info),) = signature.inputs.items()
    node = info.name.partition(":")[0]
    parsers = [place for place in walk.places() if place.node.op in ("ParseExample", "ParseExampleV2")]
    found = [_kinds(walk, place) for place in parsers if node in (walk.sources(place, 0) or ())]
    if found:
        return {key: kind for kinds in found for key, kind in kinds.items()}
    is_text = info.dtype == tf.string.as_datatype_enum and len(info.tensor_shape.dim) <= 1
    return {} if name == INPUT_NAME and is_text else None


def _kinds(walk: GraphWalk, place: Place) -> dict[str, str]:
    """The features that a node parses."""
    attributes = place.node.attr
    sparse, dense = attributes["sparse_types"].list.type, attributes["Tdense"].list.type
    if place.node.op == "ParseExampleV2":
        ragged = attributes["ragged_value_types"].list.type
        keys = [key for number in (2, 3, 4) for key in _texts(walk, place, number)]
        types = [*sparse, *dense, *ragged]
    else:
        keys = [key for number in range(len(sparse) + len(dense)) for key in _texts(walk, place, 2 + number)]
        types = [*sparse, *dense]
    if len(keys) != len(types):
        return {}
    return {key: _KINDS[kind] for key, kind in zip(keys, types, strict=True) if kind in _KINDS}


def _texts(walk: GraphWalk, place: Place, number: int) -> list[str]:
    constant = walk.constant(place, number)
    return [] if constant is None else [key.decode() for key in tf.make_ndarray(constant).ravel().tolist()]


def serialized_examples(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> np.ndarray:
    """Rows of features as an array of messages.

    Args:
        rows: rows of a request: values or lists of values, by feature name.
        kinds: what `example_kinds` found; for unknown features, integers become int64, other numbers float, and
            strings bytes.
    """
    found = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        features = {}
        for name, value in row.items():
            try:
                features[name] = _feature(value if isinstance(value, list) else [value], kinds.get(name))
            except ValueError as error:
                raise RequestError(400, f"examples[{number}]: feature {name!r:.60} {error}.") from error
        message = tf.train.Example(features=tf.train.Features(feature=features))
        found[number] = message.SerializeToString()
    return found


def _feature(values: list[Any], kind: str | None) -> tf.train.Feature:
    if not values:
        return tf.train.Feature()
    found = {_kind(value) for value in values}
    if found == {"int64", "float"} or (found == {"int64"} and kind == "float"):
        found = {"float"}
    if len(found) > 1:
        raise ValueError(f"must have values of one kind. Received: {' and '.join(sorted(found))}")
    (own,) = found
    if kind is not None and own != kind:
        raise ValueError(f"must have values of kind {kind}. Received: {own}")
    if own == "bytes":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=list(map(_bytes, values))))
    if own == "float":
        return tf.train.Feature(float_list=tf.train.FloatList(value=list(map(_float32, values))))
    if not all(_INT64.min <= value <= _INT64.max for value in values):
        raise ValueError("must have values that fit into int64")
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value) for value in values]))


def _kind(value: Any) -> str:
    if isinstance(value, (bool, int)):
        return "int64"
    if isinstance(value, float):
        return "float"
    if isinstance(value, (str, bytes)) or is_encoded(value):
        return "bytes"
    raise ValueError('must have numbers, truth values, texts or {"b64": ...}, or a list of such')


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else decoded(value)


def _float32(value: Any) -> float:
    with np.errstate(over="ignore"):
        try:
            found = float(np.float32(value))
        except OverflowError:
            found = float("inf")
    if np.isinf(found) and not (isinstance(value, float) and np.isinf(value)):
        raise ValueError("must have values that fit into float32")
    return found


def number_rows(body: bytes, get_specs: Any) -> tuple[str, Inputs] | None:
    """The signature's name and its inputs, if a body is one nest of numbers that fits a signature of one input.

    A general parser makes nested lists of such bodies, then an array; both take longer than many models. Here the
    brackets are compared as text with those of a rectangular nest, and the numbers are parsed as one flat list.
    Everything else, errors included, is left to the general parser.

    Args:
        body: of a `:predict`.
        get_specs: called with a signature's name ("" for none), returns its inputs by name, or None.

    Returns:
        None for every other body.
    """
    head = _HEAD.match(body) if len(body) >= _MIN_BYTES else None
    if head is None:
        return None
    name, place = (head[1] or b"").decode(), head[2].decode()
    specs: Mapping[str, InputSpec] | None = get_specs(name)
    text = body[head.end() :].rstrip(_BLANKS)
    if specs is None or len(specs) != 1 or not text.endswith(b"}"):
        return None
    ((input_name, spec),) = specs.items()
    array = _number_nest(text[:-1], spec)
    return None if array is None else (name, Inputs({input_name: array}, len(array), place))


def _number_nest(text: bytes, spec: InputSpec) -> np.ndarray | None:
    if spec.shape is None or spec.dtype not in (np.float32, np.float64, np.int32, np.int64):
        return None
    zeros = text.translate(_AS_ZEROS, _BLANKS)
    shape = _shape(zeros.translate(None, b"0"), rank=len(spec.shape))
    if shape is None or not _is_between_brackets(zeros) or not fits(shape[1:], spec):
        return None
    try:
        numbers = orjson.loads(b"[" + text.translate(_WITHOUT_BRACKETS) + b"]")
        array = _number_array(numbers, spec.dtype)
    except (ValueError, OverflowError, struct.error):
        return None
    return None if array is None or array.size != math.prod(shape) else array.reshape(shape)


def _shape(brackets: bytes, *, rank: int) -> tuple[int, ...] | None:
    """The shape of a rectangular nest, reduced to brackets and commas; None if it is ragged, or of another rank.

    Example:
        >>> _shape(b"[[,,],[,,]]", rank=2), _shape(b"[[,,],[,]]", rank=2)
        ((2, 3), None)
    """
    depth = len(brackets) - len(brackets.lstrip(b"["))
    end = brackets.find(b"]")
    if not 0 < depth == rank <= end:
        return None
    sizes = [end - depth + 1]
    part = b"[" + b"," * (end - depth) + b"]"
    for level in range(depth - 1, 0, -1):
        # The outermost dimension follows from the length; the others are counted in the first element.
        whole = len(brackets) if level == 1 else brackets.find(part + b"]", level - 1) + len(part) + 1 - (level - 1)
        size = (whole - 1) // (len(part) + 1)
        if size < 1:
            return None
        sizes.append(size)
        part = b"[" + b",".join([part] * size) + b"]"
    return tuple(reversed(sizes)) if part == brackets else None


def _is_between_brackets(zeros: bytes) -> bool:
    """Whether no number precedes an opening bracket or follows a closing one, and no list is empty."""
    codes = np.frombuffer(zeros, np.uint8)
    opens, closes, number = codes == ord("["), codes == ord("]"), codes == ord("0")
    return not (np.any(closes[:-1] & number[1:]) or np.any(number[:-1] & opens[1:]) or np.any(opens[:-1] & closes[1:]))


def _number_array(numbers: list[Any], dtype: np.dtype) -> np.ndarray | None:
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            found = np.frombuffer(struct.pack(f"{len(numbers)}d", *numbers), np.float64).astype(dtype)
        return found if np.isfinite(found).all() else None
    found = np.array(numbers)
    limits = np.iinfo(dtype)
    if found.dtype.kind not in "iu" or found.min() < limits.min or found.max() > limits.max:
        return None
    return found.astype(dtype)
