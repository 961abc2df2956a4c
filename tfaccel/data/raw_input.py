"""The nouns `ImageInput`, `TextInput` and `TableInput`: what a model's tensors are made of, what its outputs mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tfaccel.data.images.image_set import ImageSet
from tfaccel.data.tables.encoding import TableEncoding
from tfaccel.data.texts.vocabulary import Vocabulary
from tfaccel.errors import DataError

FILE_NAME = "raw_input.json"
_BYTES_MEAN = 127.5  # the `pixel_mean` of image sets whose pixels are bytes

Outputs = Literal["logits", "probabilities", "values"]


@dataclass(frozen=True, kw_only=True)
class RawInput:
    """Tensors as the model takes them; and what its one output means.

    Args:
        class_names: a name for each column of the output; empty where it is no class.
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
        """The description as JSON-serialisable data."""
        return {"kind": self.kind, **asdict(self), "class_names": list(self.class_names)}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> RawInput:
        """The description of this kind that `to_json` gave."""
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class ImageInput(RawInput):
    """PNG or JPEG images, of which the model takes the pixels' values from 0 to 255.

    Args:
        image_size: height and width, in pixels, to which images are brought.
        num_channels: 1 (grey) or 3 (red, green, blue).

    Example:
        >>> ImageInput(image_size=8, num_channels=1, class_names=("cat", "dog")).to_json()["image_size"]
        8
    """

    kind: ClassVar[str] = "image"
    image_size: int
    num_channels: int

    @classmethod
    def of(cls, images: ImageSet, **settings: Any) -> ImageInput | None:
        """The description of an image set; None where its pixels are no bytes, so that no image file has them."""
        if images.pixel_mean != _BYTES_MEAN:
            return None
        names = tuple(map(str, images.class_names))
        return cls(image_size=images.image_size, num_channels=images.num_channels, class_names=names, **settings)


@dataclass(frozen=True, kw_only=True)
class TextInput(RawInput):
    """Texts, of which the model takes the numbers of the first tokens.

    Args:
        vocabulary: which token has which number.
        num_tokens: how many are taken; shorter texts are filled up.
    """

    kind: ClassVar[str] = "text"
    vocabulary: Vocabulary
    num_tokens: int

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> TextInput:
        """The description that `to_json` gave."""
        return cls(**{**data, "vocabulary": Vocabulary.from_json(data["vocabulary"])})

    def to_json(self) -> dict[str, Any]:
        """The description as JSON-serialisable data."""
        return {**super().to_json(), "vocabulary": self.vocabulary.to_json()}


@dataclass(frozen=True, kw_only=True)
class TableInput(RawInput):
    """Rows of a table, of which the model takes numbers and numbers of categories.

    Args:
        encoding: how rows become inputs; its target's class names are those of the output.
    """

    kind: ClassVar[str] = "table"
    encoding: TableEncoding

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> TableInput:
        """The description that `to_json` gave."""
        return cls(**{**data, "encoding": TableEncoding.from_json(data["encoding"])})

    @classmethod
    def of(cls, encoding: TableEncoding) -> TableInput:
        """The description of a table: logits of classes, or a value."""
        names = encoding.class_names
        return cls(encoding=encoding, class_names=names, outputs="logits" if names else "values")


_KINDS: dict[str, type[RawInput]] = {kind.kind: kind for kind in (RawInput, ImageInput, TextInput, TableInput)}


def raw_input_of_json(data: Mapping[str, Any]) -> RawInput:
    """What `to_json` of one of the nouns gave.

    Raises:
        DataError: if it is nothing of the kind.

    Example:
        >>> raw_input_of_json({"kind": "image", "image_size": 8, "num_channels": 1}).num_channels
        1
    """
    try:
        fields = dict(data)
        return _KINDS[fields.pop("kind")].of_json(fields)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"This describes no raw input ({reason}). Kinds: {', '.join(_KINDS)}.") from error


def load_raw_input(path: Path) -> RawInput:
    """What stands in a file that `train` wrote.

    Raises:
        DataError: if the file cannot be read.
    """
    try:
        return raw_input_of_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {error}") from error
