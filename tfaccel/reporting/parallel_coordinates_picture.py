"""A picture of all trials of a search: an axis for each hyperparameter, a line through them for each trial."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from PIL import Image, ImageDraw

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLUE, GREY, ORANGE, WHITE, draw_text, font, save_picture, shortened

_GAP, _HEIGHT = 150, 320  # between axes, and of them, in pixels
_LEFT, _TOP, _BOTTOM, _RIGHT = 80, 70, 40, 80
_PALE = (205, 212, 222)
_FEW = 4  # values of a number, which then all stand beside the axis


@dataclass(frozen=True)
class _Axis:
    """One hyperparameter: places from 0 (below) to 1 (above), and what is written at some of them."""

    name: str
    places: tuple[float | None, ...]
    labels: tuple[tuple[float, str], ...]


def save_parallel_coordinates(
    path: str | PathLike[str],
    values: Sequence[Mapping[str, Any]],
    scores: Sequence[float],
    *,
    names: Sequence[str],
    objective: str,
    rising: bool,
    logarithmic: Collection[str] = (),
) -> None:
    """Draws a line for each trial through its hyperparameters to its score, and writes it as PNG.

    The best trial is orange; the better a trial, the darker its line.

    Arguments:
        path: the file to write.
        values: for each trial its hyperparameters.
        scores: one for each trial.
        names: the hyperparameters, in the order of the axes.
        objective: what the score is.
        rising: whether a higher score is better.
        logarithmic: those whose axis is logarithmic.

    Raises:
        DataError: without trials, or with another number of scores.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/trials.png"
        ...     trials = [{"rate": 0.1, "model": "a"}, {"rate": 0.001, "model": "b"}]
        ...     save_parallel_coordinates(path, trials, [0.5, 0.9], names=["rate", "model"], objective="accuracy",
        ...                               rising=True, logarithmic=["rate"])
        ...     with Image.open(path) as picture:
        ...         picture.size
        (460, 430)
    """
    if not values or len(values) != len(scores):
        raise DataError(
            f"A picture of trials needs a score for each. Received: {len(values)} trials, {len(scores)} scores."
        )
    axes = [_axis(name, [trial.get(name) for trial in values], name in logarithmic) for name in names]
    axes.append(_axis(objective, list(scores), False))
    picture = Image.new("RGB", (_LEFT + _GAP * (len(axes) - 1) + _RIGHT, _TOP + _HEIGHT + _BOTTOM), WHITE)
    draw = ImageDraw.Draw(picture)
    order = sorted(range(len(scores)), key=lambda trial: scores[trial], reverse=not rising)
    for rank, trial in enumerate(order):
        points = [_pixel(index, axis.places[trial]) for index, axis in enumerate(axes)]
        best = rank == len(order) - 1
        color = ORANGE if best else _mixed(rank / max(1, len(order) - 1))
        for start, end in itertools.pairwise(points):
            if start is not None and end is not None:
                draw.line([start, end], fill=color, width=3 if best else 1)
        for point in points:
            if point is not None:
                draw.ellipse([point[0] - 2, point[1] - 2, point[0] + 2, point[1] + 2], fill=color)
    for index, axis in enumerate(axes):
        _draw_axis(draw, index, axis)
    save_picture(path, picture)


def _axis(name: str, values: list[Any], logarithmic: bool) -> _Axis:
    known = [value for value in values if value is not None]
    if any(isinstance(value, str | bool) for value in known) or len(set(known)) == 1:
        kinds = sorted({str(value) for value in known})
        spots = {kind: 0.5 if len(kinds) == 1 else place / (len(kinds) - 1) for place, kind in enumerate(kinds)}
        places = tuple(None if value is None else spots[str(value)] for value in values)
        return _Axis(name, places, tuple((place, kind) for kind, place in spots.items()))
    finite = [value for value in known if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    scale = math.log if logarithmic and low > 0 else float
    width = (scale(high) - scale(low)) or 1.0
    places = tuple(
        None if value is None or not math.isfinite(value) else (scale(value) - scale(low)) / width for value in values
    )
    shown = dict(zip(places, values, strict=True)) if len(set(finite)) <= _FEW else {}
    middle = [(place, f"{value:.4g}") for place, value in shown.items() if place is not None and 0.0 < place < 1.0]
    return _Axis(name, places, ((0.0, f"{low:.4g}"), *middle, (1.0, f"{high:.4g}")))


def _pixel(index: int, place: float | None) -> tuple[float, float] | None:
    return None if place is None else (_LEFT + _GAP * index, _TOP + _HEIGHT * (1 - place))


def _mixed(part: float) -> tuple[int, int, int]:
    """From pale to blue."""
    red, green, blue = (round(pale + part * (dark - pale)) for pale, dark in zip(_PALE, BLUE, strict=True))
    return red, green, blue


def _draw_axis(draw: ImageDraw.ImageDraw, index: int, axis: _Axis) -> None:
    x = _LEFT + _GAP * index
    draw.line([x, _TOP, x, _TOP + _HEIGHT], fill=GREY)
    draw_text(draw, (x, _TOP - 22 - 16 * (index % 2)), shortened(axis.name, 24), anchor="mb")
    for place, label in axis.labels:
        start, text = (x + 6, _TOP + _HEIGHT * (1 - place)), shortened(label, 16)
        left, top, right, bottom = draw.textbbox(start, text, font=font(11), anchor="lm")
        draw.rectangle([left - 2, top - 1, right + 2, bottom + 1], fill=WHITE)  # lines may pass behind
        draw_text(draw, start, text, anchor="lm", size=11)
