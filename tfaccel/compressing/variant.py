"""The noun `Variant`: one smaller version of a model, as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfaccel.errors import CompressionError
from tfaccel.records import Record
from tfaccel.short_repr import short_repr

LITERT_SUFFIX = ".tflite"
KERAS_SUFFIX = ".keras"


@short_repr
@dataclass(frozen=True, kw_only=True)
class Variant(Record):
    """One smaller version of a model (or the float model, as the reference), as a file.

    Args:
        name: its name in tables, such as "int8" or "prune+int8".
        method: its compression method, such as "int8"; "float32" for the float model.
        path: its file: `.tflite`, or `.keras` for a model that stays in Keras.
        notes: one line each, such as the source of representative data, or what stayed in float.
        metrics: name -> value of what was measured while it was made, such as the metric of the fake-quantized
            model after training.
        float_layers: names of the layers that were deliberately kept in float.

    Raises:
        CompressionError: if a name is empty, or the file's suffix is unknown.

    Example:
        >>> Variant(name="int8", method="int8", path="runs/digits/variants/int8.tflite").is_litert
        True
    """

    name: str
    method: str
    path: str
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    float_layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("name", "method"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise CompressionError(f"A variant's {name} must be a text. Received: {name}={value!r}.")
        object.__setattr__(self, "path", str(self.path))
        object.__setattr__(self, "notes", tuple(self.notes))
        object.__setattr__(self, "float_layers", tuple(self.float_layers))
        if Path(self.path).suffix not in (LITERT_SUFFIX, KERAS_SUFFIX):
            raise CompressionError(
                f"A variant's file ends in {LITERT_SUFFIX} or {KERAS_SUFFIX}. Received: path={self.path!r}."
            )

    @property
    def is_litert(self) -> bool:
        """Whether LiteRT runs it; otherwise Keras does."""
        return Path(self.path).suffix == LITERT_SUFFIX
