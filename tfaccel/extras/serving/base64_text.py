"""Bytes in JSON: `{"b64": ...}`, as TensorFlow Serving reads it."""

from __future__ import annotations

import base64
from typing import Any

_BLANKS = str.maketrans("", "", " \t\n\v\f\r")


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
