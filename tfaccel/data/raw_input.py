"""`ImageInput`, `TextInput` and `TableInput`: how raw data become a model's tensors, and what its outputs mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tfaccel.data.images.image_set import ImageSet
from tfaccel.data.tables.encoding import TableEncoding
from tfaccel.data.texts.vocabulary import Vocabulary
from tfaccel.errors import DataError
from tfaccel.records import Record
from tfaccel.short_repr import noun

FILE_NAME = "raw_input.json"
_BYTES_MEAN = 127.5  # the `pixel_mean` of image sets with uint8 pixels

Outputs = Literal["logits", "probabilities", "values"]


@dataclass(frozen=True, kw_only=True)
class RawInput(Record):
    """Tensors in the model's own form, and the meaning of its single output.

    Args:
        class_names: a name for each column of the output; empty if columns are not classes.
        outputs: whether the output is logits, probabilities or other values.
    """

    kind: ClassVar[str] = "tensors"
    class_names: tuple[str, ...] = ()
    outputs: Outputs = "logits"

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if self.outputs not in ("logits", "probabilities", "values"):
            raise DataError(f"`outputs` must be logits, probabilities or values. Received: outputs={self.outputs!r}.")

    def to_json(self) -> dict[str, Any]:
        """The description as JSON-serializable data."""
        return {"kind": self.kind, **super().to_json()}


@noun(error=DataError)
class ImageInput(RawInput):
    """Encoded images, whose pixel values from 0 to 255 the model takes.

    Args:
        image_size: height and width, in pixels, that images are resized to.
        num_channels: 1 (grayscale) or 3 (RGB).

    Example:
        >>> ImageInput(image_size=8, num_channels=1, class_names=("cat", "dog")).to_json()["image_size"]
        8
    """

    kind: ClassVar[str] = "image"
    image_size: int
    num_channels: int

    @classmethod
    def of(cls, images: ImageSet, **settings: Any) -> ImageInput | None:
        """The description of an image set; None if its pixels are not uint8, since image files cannot hold them."""
        if images.pixel_mean != _BYTES_MEAN:
            return None
        names = tuple(map(str, images.class_names))
        return cls(image_size=images.image_size, num_channels=images.num_channels, class_names=names, **settings)


@noun(error=DataError)
class TextInput(RawInput):
    """Texts, whose first token ids the model takes.

    Args:
        vocabulary: maps tokens to ids.
        num_tokens: length of the input; texts are truncated or padded to it.
    """

    kind: ClassVar[str] = "text"
    vocabulary: Vocabulary
    num_tokens: int


@noun(error=DataError)
class TableInput(RawInput):
    """Rows of a table, which the model takes as numbers and category indices.

    Args:
        encoding: how rows become inputs; the output has the class names of its target.
    """

    kind: ClassVar[str] = "table"
    encoding: TableEncoding

    @classmethod
    def of(cls, encoding: TableEncoding) -> TableInput:
        """The description of a table: logits of classes, or a value."""
        names = encoding.class_names
        return cls(encoding=encoding, class_names=names, outputs="logits" if names else "values")


_KINDS: dict[str, type[RawInput]] = {kind.kind: kind for kind in (RawInput, ImageInput, TextInput, TableInput)}


def raw_input_of_json(data: Mapping[str, Any]) -> RawInput:
    """The raw input from its `to_json` data.

    Raises:
        DataError: if the data do not describe a raw input.

    Example:
        >>> raw_input_of_json({"kind": "image", "image_size": 8, "num_channels": 1}).num_channels
        1
    """
    try:
        fields = dict(data)
        return _KINDS[fields.pop("kind")].from_json(fields)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"This describes no raw input ({reason}). Kinds: {', '.join(_KINDS)}.") from error


def load_raw_input(path: Path) -> RawInput:
    """The raw input in a file that `train` wrote.

    Raises:
        DataError: if the file cannot be read.
    """
    try:
        return raw_input_of_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {error}") from error
