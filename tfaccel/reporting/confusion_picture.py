"""A picture of which class was taken for which, one square for each model."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

import numpy as np
from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLACK, BLUE, WHITE, draw_text, save_picture, shortened

MOST_CLASSES = 20  # that have a row and a column of their own; the others are taken together
_SIDE, _LEFT, _TOP, _GAP = 360, 110, 90, 24  # pixels
_LONGEST_NAME = 14  # characters
_MOST_CLASSES_IN_NUMBERS = 12  # up to which the cells hold their counts


def save_confusion_picture(
    path: str | PathLike[str], matrices: Mapping[str, np.ndarray], *, class_names: tuple[str, ...]
) -> None:
    """Draws how often each class was taken for each, and writes it as PNG, whole or not at all.

    A row is a true class, a column what it was taken for; a cell is the darker, the larger its part of the row. From 20
    classes on, the last ones are taken together.

    Arguments:
        path: the file to write.
        matrices: model -> counts, of shape (num_classes, num_classes).
        class_names: a name for each class.

    Raises:
        DataError: if there is no matrix, or one is not of that shape.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/predictions.png"
        ...     save_confusion_picture(path, {"network": np.array([[8, 1], [0, 9]])}, class_names=("cat", "dog"))
        ...     with Image.open(path) as picture:
        ...         picture.size
        (494, 474)
    """
    num_classes = len(class_names)
    wrong = [name for name, matrix in matrices.items() if matrix.shape != (num_classes, num_classes)]
    if not matrices or wrong:
        raise DataError(
            f"Each model needs counts of shape ({num_classes}, {num_classes}), and there must be a model. "
            f"Received: {', '.join(f'{name} {matrices[name].shape}' for name in wrong) or 'none'}."
        )
    width = _LEFT + len(matrices) * (_SIDE + _GAP)
    picture = Image.new("RGB", (width, _TOP + _SIDE + _GAP), WHITE)
    draw = ImageDraw.Draw(picture)
    for number, (model, matrix) in enumerate(matrices.items()):
        counts, names = joined(matrix, class_names)
        left = _LEFT + number * (_SIDE + _GAP)
        right = 100 * np.trace(matrix) / max(1, matrix.sum())
        draw_text(draw, (left + _SIDE / 2, 20), f"{model}: {right:.1f} % right", anchor="mm", size=16)
        draw_text(draw, (left + _SIDE / 2, 44), "taken for", anchor="mm", color=(110, 110, 110))
        _draw_matrix(draw, counts, names, left=left, with_rows=number == 0)
    save_picture(path, picture)


def joined(matrix: np.ndarray, class_names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Counts and names with the last classes taken together, where there are too many.

    Example:
        >>> counts, names = joined(np.ones((30, 30), int), tuple(map(str, range(30))))
        >>> counts.shape, names[-1], int(counts[-1, -1])
        ((20, 20), 'others', 121)
    """
    if len(class_names) <= MOST_CLASSES:
        return matrix, class_names
    kept = np.arange(MOST_CLASSES)
    counts = np.add.reduceat(np.add.reduceat(matrix, kept, axis=0), kept, axis=1)
    return counts, (*class_names[: MOST_CLASSES - 1], "others")


def _draw_matrix(
    draw: ImageDraw.ImageDraw, counts: np.ndarray, names: tuple[str, ...], *, left: int, with_rows: bool
) -> None:
    cell = _SIDE / len(names)
    parts = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    text_size = int(min(16, max(8, cell / 3)))
    for row, name in enumerate(names):
        middle = _TOP + (row + 0.5) * cell
        if with_rows:
            draw_text(draw, (left - 8, middle), shortened(name, _LONGEST_NAME), anchor="rm", size=min(13, text_size))
        room = max(3, int(cell / 7))
        above = (left + (row + 0.5) * cell, _TOP - 12)
        draw_text(draw, above, shortened(name, min(_LONGEST_NAME, room)), anchor="mm", size=min(13, text_size))
        for column in range(len(names)):
            box = [left + column * cell, _TOP + row * cell, left + (column + 1) * cell, _TOP + (row + 1) * cell]
            part = float(parts[row, column])
            shade = tuple(round(255 + (of_blue - 255) * part) for of_blue in BLUE)
            draw.rectangle(box, fill=shade, outline=(210, 210, 210))
            if len(names) <= _MOST_CLASSES_IN_NUMBERS:
                place = (left + (column + 0.5) * cell, middle)
                color = WHITE if part > 0.5 else BLACK
                draw_text(draw, place, str(int(counts[row, column])), anchor="mm", size=text_size, color=color)
