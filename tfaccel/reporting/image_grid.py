"""Grids of images with captions."""

from os import PathLike

import numpy as np
from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import save_picture, shortened

_TILE, _CAPTION, _GAP = 72, 14, 3  # pixels
_INK = (40, 40, 40)
_LONGEST_CAPTION = 12  # characters that fit


def save_image_grid(
    path: str | PathLike[str], images: np.ndarray, *, captions: list[str] | None = None, num_columns: int = 10
) -> None:
    """Draws images row by row, and writes the picture.

    Arguments:
        path: the file to write.
        images: pixel values, of shape (num_images, height, width, channels) with 1 or 3 channels; the darkest and the
            brightest of all become black and white.
        captions: a text below each image; None for none.
        num_columns: images in a row.

    Raises:
        DataError: if there are no images, or not one caption for each.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_image_grid(f"{folder}/grid.png", np.random.default_rng(0).random((4, 8, 8, 1)), num_columns=2)
        ...     with Image.open(f"{folder}/grid.png") as picture:
        ...         picture.size
        (150, 150)
    """
    if len(images) == 0 or (captions is not None and len(captions) != len(images)):
        num_captions = "none" if captions is None else len(captions)
        raise DataError(
            "A picture needs at least one image, and one caption for each or none at all. "
            f"Received: {len(images)} images, {num_captions} captions."
        )
    pixels = as_bytes(images)
    num_columns = min(num_columns, len(images))
    width, height = _TILE + _GAP, _TILE + _GAP + (_CAPTION if captions else 0)
    grid = Image.new("RGB", (num_columns * width, -(-len(images) // num_columns) * height), "white")
    draw = ImageDraw.Draw(grid)
    for number, image in enumerate(pixels):
        x, y = number % num_columns * width, number // num_columns * height
        grid.paste(as_image(image).resize((_TILE, _TILE), Image.Resampling.NEAREST), (x, y))
        if captions:
            draw.text((x + 1, y + _TILE), shortened(captions[number], _LONGEST_CAPTION), fill=_INK)
    save_picture(path, grid)


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Pixel values from black (the darkest of all) to white (the brightest): uint8."""
    low, high = float(images.min()), float(images.max())
    return np.round((images.astype(np.float64) - low) * (255 / (high - low or 1.0))).astype(np.uint8)


def as_image(pixels: np.ndarray) -> Image.Image:
    """One image of 1 or 3 channels (uint8) in colors."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
