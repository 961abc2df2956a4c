"""Keras's loading of models, replaced in part: layers may declare no more weights than the file holds."""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.errors import ExportError

if TYPE_CHECKING:
    import keras

_WEIGHTS_PER_BYTE, _MORE_WEIGHTS = 2, 1 << 24  # weights of 4 bits; and a few that are not saved


def load_model(path: str | os.PathLike[str], **options: Any) -> keras.Model:
    """`keras.saving.load_model` for a `.keras` file, without allocating weights that the file does not hold.

    Args:
        path: the file, which has been checked.
        **options: as for Keras.

    Raises:
        ExportError: if the layers declare more weights than the file has room for.
    """
    import keras

    with zipfile.ZipFile(path) as archive:
        num_bytes = sum(member.file_size for member in archive.infolist())
    refused: list[ExportError] = []
    try:
        with _at_most(_WEIGHTS_PER_BYTE * num_bytes + _MORE_WEIGHTS, Path(path), num_bytes, refused):
            return keras.saving.load_model(path, **options)
    except Exception:
        if refused:  # Keras wraps errors of layers in its own
            raise refused[0] from None
        raise


@contextlib.contextmanager
def _at_most(num_weights: int, path: Path, num_bytes: int, refused: list[ExportError]) -> Iterator[None]:
    """Refuses to add more weights to layers in the block."""
    import keras

    original, first_state, added = keras.layers.Layer.add_weight, keras.layers.RNN.get_initial_state, 0

    def get_initial_state(layer: keras.layers.RNN, batch_size: Any) -> Any:
        sizes = [size for size in keras.tree.flatten(layer.state_size) if isinstance(size, int)]
        count(layer, batch_size * sum(sizes) if isinstance(batch_size, int) else 0)
        return first_state(layer, batch_size)

    def add_weight(layer: keras.layers.Layer, shape: Any = None, *args: Any, **kwargs: Any) -> Any:
        sizes = shape if isinstance(shape, list | tuple) else () if shape is None else (shape,)
        count(layer, math.prod(size for size in sizes if isinstance(size, int)))
        return original(layer, shape, *args, **kwargs)

    def count(layer: keras.layers.Layer, number: int) -> None:
        nonlocal added
        added += number
        if added > num_weights:
            error = ExportError(
                f"{path} is refused: its layers declare more weights than it holds. Layer {layer.name!r} asks for "
                f"{number:,}, and the file has {num_bytes:,} bytes when unpacked."
            )
            refused.append(error)
            raise error

    keras.layers.Layer.add_weight, keras.layers.RNN.get_initial_state = add_weight, get_initial_state
    try:
        yield
    finally:
        keras.layers.Layer.add_weight, keras.layers.RNN.get_initial_state = original, first_state
