"""A picture of test images with what a model takes them for."""

from os import PathLike

import numpy as np
from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import save_picture, shortened

_NUM_COLUMNS, _MOST_ROWS = 10, 6
_TILE, _CAPTION, _BORDER = 96, 16, 3  # pixels
_RIGHT, _WRONG = (40, 130, 60), (200, 30, 30)
_LONGEST_CAPTION = 16  # characters that fit


def save_prediction_grid(
    path: str | PathLike[str],
    images: np.ndarray,
    *,
    labels: np.ndarray,
    predictions: np.ndarray,
    class_names: tuple[str, ...],
) -> None:
    """Draws a grid of images, each with its predicted class, and writes it as PNG, whole or not at all.

    Images that were predicted wrongly come first, framed in red, with the true class behind the predicted one; up to
    half of the grid is theirs. The others follow in their order, framed in green.

    Arguments:
        path: the file to write.
        images: pixel values, of shape (num_images, height, width, channels) with 1 or 3 channels; the darkest and the
            brightest of all become black and white.
        labels: the true class of each image, a number from 0; of shape (num_images,).
        predictions: the predicted class of each image.
        class_names: a name for each class.

    Raises:
        DataError: if there are no images, or not as many labels and predictions as images.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     images, ones = np.random.default_rng(0).random((4, 8, 8, 1)), np.ones(4, int)
        ...     path = pathlib.Path(folder, "predictions.png")
        ...     save_prediction_grid(path, images, labels=ones, predictions=ones, class_names=("cat", "dog"))
        ...     with Image.open(path) as picture:
        ...         picture.size
        (408, 118)
    """
    if len(images) == 0 or not len(images) == len(labels) == len(predictions):
        raise DataError(
            "A picture needs at least one image, and a label and a prediction for each. "
            f"Received: {len(images)} images, {len(labels)} labels, {len(predictions)} predictions."
        )
    shown = shown_rows(labels, predictions)
    pixels = _as_bytes(images)
    num_columns = min(_NUM_COLUMNS, len(shown))
    width, height = _TILE + 2 * _BORDER, _TILE + _CAPTION + 2 * _BORDER
    grid = Image.new("RGB", (num_columns * width, -(-len(shown) // num_columns) * height), "white")
    for position, row in enumerate(shown):
        corner = (position % num_columns * width, position // num_columns * height)
        caption = caption_of(int(labels[row]), int(predictions[row]), class_names)
        grid.paste(_tile(pixels[row], caption, is_right=labels[row] == predictions[row]), corner)
    save_picture(path, grid)


def shown_rows(labels: np.ndarray, predictions: np.ndarray) -> list[int]:
    """The rows to show: wrong ones first, up to half of the grid."""
    most = _NUM_COLUMNS * _MOST_ROWS
    wrong = np.flatnonzero(labels != predictions)[: most // 2]
    right = np.flatnonzero(labels == predictions)[: most - len(wrong)]
    return [int(row) for row in (*wrong, *right)]


def caption_of(label: int, prediction: int, class_names: tuple[str, ...]) -> str:
    """`"7"` for a right prediction, `"1 (is 7)"` for a wrong one.

    Example:
        >>> caption_of(1, 0, ("cat", "dog"))
        'cat (is dog)'
    """
    text = class_names[prediction] if label == prediction else f"{class_names[prediction]} (is {class_names[label]})"
    return shortened(text, _LONGEST_CAPTION)


def _as_bytes(images: np.ndarray) -> np.ndarray:
    low, high = float(images.min()), float(images.max())
    return np.round((images - low) * (255 / (high - low or 1.0))).astype(np.uint8)


def _tile(pixels: np.ndarray, caption: str, *, is_right: bool) -> Image.Image:
    color = _RIGHT if is_right else _WRONG
    tile = Image.new("RGB", (_TILE + 2 * _BORDER, _TILE + _CAPTION + 2 * _BORDER), "white")
    draw = ImageDraw.Draw(tile)
    draw.rectangle((0, 0, _TILE + 2 * _BORDER - 1, _TILE + 2 * _BORDER - 1), fill=color)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
    tile.paste(picture.resize((_TILE, _TILE), Image.Resampling.NEAREST), (_BORDER, _BORDER))
    draw.text((_BORDER, _TILE + 2 * _BORDER + 1), caption, fill=color)
    return tile
