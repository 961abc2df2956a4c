"""A picture of how much each hyperparameter decides the score of a search."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLUE, WHITE, draw_text, save_picture, shortened

_NAME_WIDTH, _BAR_WIDTH, _ROW_HEIGHT, _TOP, _MARGIN = 190, 300, 26, 44, 60


def save_importance_picture(path: str | PathLike[str], shares: Mapping[str, float], *, objective: str) -> None:
    """Draws a bar for each hyperparameter, and writes it as PNG, whole or not at all.

    Arguments:
        path: the file to write.
        shares: hyperparameter -> its share in what the score depends on, from 0 to 1, in the order of the bars.
        objective: what the score is.

    Raises:
        DataError: if there is none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_importance_picture(f"{folder}/p.png", {"learning_rate": 0.8, "units": 0.2}, objective="accuracy")
        ...     with Image.open(f"{folder}/p.png") as picture:
        ...         picture.size
        (550, 104)
    """
    if not shares:
        raise DataError("A picture of importance needs at least one hyperparameter. Received none.")
    size = (_NAME_WIDTH + _BAR_WIDTH + _MARGIN, _TOP + _ROW_HEIGHT * len(shares) + 8)
    picture = Image.new("RGB", size, WHITE)
    draw = ImageDraw.Draw(picture)
    draw_text(draw, (10, 12), f"What {objective} depends on", size=15)
    for row, (name, share) in enumerate(shares.items()):
        y = _TOP + _ROW_HEIGHT * row + _ROW_HEIGHT / 2
        draw_text(draw, (_NAME_WIDTH - 8, y), shortened(name, 26), anchor="rm")
        end = _NAME_WIDTH + max(1.0, _BAR_WIDTH * share)
        draw.rectangle([_NAME_WIDTH, y - 8, end, y + 8], fill=BLUE)
        draw_text(draw, (end + 6, y), f"{share:.0%}", anchor="lm", size=12)
    save_picture(path, picture)
