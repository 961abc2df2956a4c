"""Plots with matplotlib: figures without global state, labels that fit, and atomic file writes."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from tfaccel.errors import ReportError
from tfaccel.files import whole_file
from tfaccel.local_path import local_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

BLACK, GREY, LIGHT = "#1e1e1e", "#828282", "#e1e1e1"
BLUE, ORANGE, GREEN, RED = "#205caa", "#d76914", "#28823c", "#c81e1e"
CLASS_COLORS = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#6e6e6e",
    "#a0a014",
    "#17becf",
)
DPI = 100  # sizes are in pixels at this resolution
SMALL = 8  # points

P = ParamSpec("P")
logger = logging.getLogger("tfaccel")


def saved(draw: Callable[P, Figure]) -> Callable[Concatenate[str | PathLike[str], P], None]:
    """Wraps `draw` so that `saved(draw)(path, ...)` writes the figure `draw(...)` as a PNG file.

    The file is written atomically. Without matplotlib, a warning is logged and nothing is written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved(new_figure)(Path(folder, "blank.png"), 60, 40)
        ...     [file.name for file in Path(folder).iterdir()]
        ['blank.png']
    """

    @functools.wraps(draw)
    def save(path: str | PathLike[str], *args: P.args, **kwargs: P.kwargs) -> None:
        if importlib.util.find_spec("matplotlib") is None:
            logger.warning("Skipping %s because matplotlib is not installed: pip install matplotlib", Path(path).name)
            return
        figure = draw(*args, **kwargs)
        with whole_file(local_path(path, ReportError)) as temporary:
            figure.savefig(temporary, format="png")

    return save


def new_figure(width: float, height: float, *, layout: Any = "constrained") -> Figure:
    """Creates an empty figure, sized in pixels, that is not registered in pyplot.

    Example:
        >>> new_figure(300, 200).bbox.size.tolist()
        [300.0, 200.0]
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def new_plot(width: float, height: float, **settings: Any) -> tuple[Figure, Axes]:
    """An empty figure, sized in pixels, and its only axes, with a grid.

    Args:
        width, height: of the figure.
        **settings: of the axes, as for `Figure.add_subplot`.
    """
    figure = new_figure(width, height)
    axes = figure.add_subplot(**settings)
    axes.grid(color=LIGHT)
    return figure, axes


def add_legend(figure: Figure, num_columns: int, *, below: bool = False) -> None:
    """Adds a legend of all that has a label, above or below the axes."""
    place: Any = "outside lower center" if below else "outside upper center"
    figure.legend(loc=place, ncols=num_columns, frameon=False)


def image_axes(figure: Figure, left: float, top: float, side: float) -> Axes:
    """Adds square axes for an image, without ticks, at a position in pixels from the upper left corner."""
    width, height = figure.bbox.size
    axes = figure.add_axes((left / width, 1 - (top + side) / height, side / width, side / height))
    axes.set(xticks=[], yticks=[])
    return axes


def shown(text: str, num_characters: int) -> str:
    """Shortens a text to `num_characters`, cut in the middle, and escapes it for matplotlib.

    Characters missing in matplotlib's font become question marks; dollar signs start no formula.

    Example:
        >>> shown("a rather long name: -17", 12)
        'a rat…e: -17'
        >>> shown("cost in $, 猫", 20)
        'cost in \\\\$, ?'
    """
    if len(text) > num_characters:
        begin = (num_characters - 1) // 2
        text = f"{text[:begin]}…{text[len(text) - (num_characters - 1 - begin) :]}"
    return "".join(one if _has_glyph(one) else "?" for one in " ".join(text.split())).replace("$", r"\$")


def fitted(figure: Figure, text: str, width: float, *, size: float = SMALL) -> str:
    """Shortens a text to a width in pixels, cut in the middle.

    Example:
        >>> fitted(new_figure(100, 100), "a rather long name", 60)
        'a r…name'
    """
    from matplotlib.font_manager import FontProperties

    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    font = FontProperties(family="DejaVu Sans", size=size)
    for num_characters in range(len(text), 3, -1):
        cut = shown(text, num_characters)
        if renderer.get_text_width_height_descent(cut, font, ismath=False)[0] <= width:
            return cut
    return shown(text, 3)


@functools.cache
def _has_glyph(character: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return bool(get_font(findfont("DejaVu Sans")).get_char_index(ord(character)))


def place_labels(
    axes: Axes,
    labels: Iterable[tuple[str, tuple[float, float, float, float], str]],
    *,
    pad: float = 0.0,
    keep_all: bool = False,
) -> list[Annotation]:
    """Places a label next to each box, inside the axes and without overlaps.

    Args:
        axes: at their final position in the figure.
        labels: (text, box as (left, bottom, right, top) in data coordinates, color), the most important first.
        pad: margin around each box, in pixels.
        keep_all: draw labels even if there is no free space; False leaves them out.
    """
    renderer = axes.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    room, written = axes.get_window_extent(renderer), []
    owned = [(text, _in_pixels(axes, box, pad), color) for text, box, color in labels]
    taken = [owner for _, owner, _ in owned] if pad else []  # no label covers a dot
    for text, owner, color in owned:
        note = axes.annotate(
            text,
            (0, 0),
            xycoords="figure pixels",
            fontsize=SMALL,
            color=color,
            annotation_clip=False,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
        )
        note.set_in_layout(False)
        size = note.get_window_extent(renderer)
        boxes = [size.translated(x - size.x0, y - size.y0) for x, y in _corners(owner, size.width, size.height)]
        inside = [box for box in boxes if room.x0 <= box.x0 and box.x1 <= room.x1]
        inside = [box for box in inside if room.y0 <= box.y0 and box.y1 <= room.y1]
        free = [box for box in inside if not any(box.overlaps(other) for other in taken)]
        if not free and not keep_all:
            note.remove()
            continue
        box = (free or inside or boxes)[0]
        note.set_position((note.get_position()[0] + box.x0 - size.x0, note.get_position()[1] + box.y0 - size.y0))
        taken.append(box)
        written.append(note)
    return written


def _in_pixels(axes: Axes, box: tuple[float, float, float, float], pad: float) -> Bbox:
    """Converts a box from data coordinates to pixels, with a margin."""
    from matplotlib.transforms import Bbox

    corners = axes.transData.transform([box[:2], box[2:]])
    return Bbox([corners.min(axis=0) - pad, corners.max(axis=0) + pad])


def _corners(box: Bbox, width: float, height: float) -> list[tuple[float, float]]:
    """Candidate positions of a label's lower left corner: right above and below the box first, then further away."""
    line = height + 2
    near = [box.y1 + 1, box.y0 - height - 1]
    far = [y for number in (1, 2, 3) for y in (box.y1 + 1 + number * line, box.y0 - 1 - number * line - height)]
    columns = (box.x0, box.x1 - width, box.x0 - width, box.x1)
    sides = [
        (x, y)
        for y in ((box.y0 + box.y1 - height) / 2, box.y1 - height, box.y0)
        for x in (box.x1 + 1, box.x0 - width - 1)
    ]
    inside = [(x, y) for y in (box.y1 - height - 1, box.y0 + 1) for x in (box.x0 + 1, box.x1 - width - 1)]
    return [*((x, y) for y in near for x in columns), *sides, *inside, *((x, y) for y in far for x in columns)]
