"""Grids of images with captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLACK, SMALL, fitted, image_axes, new_figure, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TILE, GAP, LINE = 92, 8, 13  # pixels
_MAX_CAPTION = 15  # characters that usually fit a tile


def image_grid_figure(images: np.ndarray, *, captions: list[str] | None = None, num_columns: int = 10) -> Figure:
    """Plots images row by row.

    Args:
        images: pixel values, of shape (num_images, height, width, channels) with 1 or 3 channels; they are rescaled so
            that the darkest becomes black and the brightest white.
        captions: a text below each image, wrapped to two lines if long; None for no captions.
        num_columns: images per row.

    Raises:
        DataError: if there are no images, or the number of captions differs from theirs.

    Example:
        >>> figure = image_grid_figure(np.random.default_rng(0).random((4, 8, 8, 1)), num_columns=2)
        >>> len(figure.axes), figure.bbox.size.tolist()
        (4, [208.0, 208.0])
    """
    if len(images) == 0 or (captions is not None and len(captions) != len(images)):
        num_captions = "none" if captions is None else len(captions)
        raise DataError(
            "A plot needs at least one image, and one caption for each or no captions. "
            f"Received: {len(images)} images, {num_captions} captions."
        )
    lines = [on_lines(caption) for caption in captions or []]
    return framed_grid(as_bytes(images), lines, [None] * len(images), num_columns=num_columns)


save_image_grid = saved(image_grid_figure)


def framed_grid(
    pixels: np.ndarray, captions: list[list[str]], colors: list[str] | list[None], *, num_columns: int
) -> Figure:
    """Plots images (uint8) row by row, each with lines of text below and, if it has a color, a frame."""
    num_columns = min(num_columns, len(pixels))
    num_lines = max((len(lines) for lines in captions), default=0)
    width, height = TILE + GAP, TILE + GAP + LINE * num_lines
    figure = new_figure(num_columns * width + GAP, -(-len(pixels) // num_columns) * height + GAP, layout=None)
    for number, (image, color) in enumerate(zip(pixels, colors, strict=True)):
        left, top = GAP + number % num_columns * width, GAP + number // num_columns * height
        axes = image_axes(figure, left, top, TILE)
        axes.imshow(as_image(image), interpolation="nearest")
        axes.spines[:].set(visible=color is not None, color=color or BLACK, linewidth=3)
        if captions:
            text = "\n".join(fitted(figure, line, TILE) for line in captions[number])
            axes.set_xlabel(text, fontsize=SMALL, color=color or BLACK, labelpad=3, linespacing=1.0)
    return figure


def on_lines(caption: str) -> list[str]:
    """Splits a caption into two lines if it is too long for one.

    Example:
        >>> on_lines("square: -17"), on_lines("a rather long name: -17")
        (['square: -17'], ['a rather long', 'name: -17'])
    """
    space = caption.rfind(" ", 0, _MAX_CAPTION + 1)
    if len(caption) <= _MAX_CAPTION or space < 1:
        return [caption]
    return [caption[:space], caption[space + 1 :]]


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Rescales pixel values to uint8, from black (the darkest of all) to white (the brightest)."""
    low, high = float(images.min()), float(images.max())
    return np.round((images.astype(np.float64) - low) * (255 / (high - low or 1.0))).astype(np.uint8)


def as_image(pixels: np.ndarray) -> Image.Image:
    """Converts an image of 1 or 3 channels (uint8) to RGB."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
