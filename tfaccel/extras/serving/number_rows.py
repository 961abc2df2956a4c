"""A fast parser for requests that are one nested list of numbers.

Most requests are: `{"instances": [[[1, 2], ...], ...]}`. A general parser makes nested lists of them, then an
array; both take longer than many models. Here the brackets are compared as text with those of a rectangular nest, and
the numbers are parsed as one flat list. Everything else, errors included, is left to the general parser.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from tfaccel.extras.serving.request_inputs import Inputs, InputSpec, fits

_HEAD = re.compile(rb'\s*\{\s*(?:"signature_name"\s*:\s*"([\w/.-]*)"\s*,\s*)?"(instances|inputs)"\s*:(?=\s*\[)')
_MIN_BYTES = 2048  # smaller bodies gain nothing
_BLANKS = b" \t\r\n"
# Characters of numbers become "0"; brackets become blanks.
_AS_ZEROS = bytes(ord("0") if byte in b"0123456789+-.eE" else byte for byte in range(256))
_WITHOUT_BRACKETS = bytes(ord(" ") if byte in b"[]" else byte for byte in range(256))


def number_rows(body: bytes, get_specs: Any) -> tuple[str, Inputs] | None:
    """The signature's name and its inputs, if a body is one nest of numbers that fits a signature of one input.

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
    array = _nest(text[:-1], spec)
    return None if array is None else (name, Inputs({input_name: array}, len(array), place))


def _nest(text: bytes, spec: InputSpec) -> np.ndarray | None:
    if spec.shape is None or spec.dtype not in (np.float32, np.float64, np.int32, np.int64):
        return None
    zeros = text.translate(_AS_ZEROS, _BLANKS)
    shape = _shape(zeros.translate(None, b"0"), rank=len(spec.shape))
    if shape is None or not _is_between_brackets(zeros) or not fits(shape[1:], spec):
        return None
    try:
        numbers = orjson.loads(b"[" + text.translate(_WITHOUT_BRACKETS) + b"]")
        array = _array(numbers, spec.dtype)
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


def _array(numbers: list[Any], dtype: np.dtype) -> np.ndarray | None:
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            found = np.frombuffer(struct.pack(f"{len(numbers)}d", *numbers), np.float64).astype(dtype)
        return found if np.isfinite(found).all() else None
    found = np.array(numbers)
    limits = np.iinfo(dtype)
    if found.dtype.kind not in "iu" or found.min() < limits.min or found.max() > limits.max:
        return None
    return found.astype(dtype)
