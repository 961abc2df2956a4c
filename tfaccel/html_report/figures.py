"""The charts of a report, as Plotly figures that follow the page's width, colors and theme."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tfaccel.errors import VersionError
from tfaccel.html_report.page import Chart, LegendEntry

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Each has a contrast of at least 3 with the backgrounds in page.css, light and dark (WCAG 2.2, 1.4.11).
COLORS = ("#2f7fd6", "#d2691e", "#2a9457", "#9466d1", "#d1495b", "#0f8f9c", "#8f7a1f", "#c2559d", "#6f7d8c")
GOOD, BAD, MUTED = COLORS[2], COLORS[4], COLORS[8]
HEIGHT = 260  # pixels
_MAX_WHOLE = 7  # steps of an axis on which each whole number has a tick
_MAX_MARKED = 30  # points of a line that are marked
_DASHES = {
    "line": "solid",
    "dashed": "dash",
    "long-dashed": "longdash",
    "dotted": "dot",
    "dash-dotted": "dashdot",
    "long-dash-dotted": "longdashdot",
}
_SHAPES = tuple(_DASHES)  # those with dots follow those without
_HOVER = "#1c2127"  # the background of white texts in both themes


def check_plotly() -> None:
    """Raises VersionError if Plotly or Jinja is not installed.

    Example:
        >>> check_plotly()
    """
    for package in ("plotly", "jinja2"):
        if find_spec(package) is None:
            raise VersionError(
                f"A report needs `{package}`, which is not installed. Install it: pip install 'tfaccel[report]'"
            )


def get_color(number: int) -> str:
    """The color of the run, or series, with this number; they repeat after nine, with another `get_shape`.

    Example:
        >>> get_color(0) == get_color(len(COLORS))
        True
    """
    return COLORS[number % len(COLORS)]


def get_shape(number: int, *, has_dots: bool = False) -> str:
    """The shape of the line of the run with this number; runs of the same color have different ones, up to 27 runs.

    Example:
        >>> get_shape(0), get_shape(len(COLORS)), get_shape(len(COLORS), has_dots=True)
        ('line', 'dashed', 'dash-dotted')
    """
    shapes = _SHAPES[3:] if has_dots else _SHAPES[:3]
    return shapes[number // len(COLORS) % len(shapes)]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line or group of dots of a chart.

    Args:
        name: shown when the pointer is on it.
        x, y: the points; None in `y` leaves a gap.
        color: as in CSS.
        shape: one of `get_shape`, "dot", or "plain" for a line without marks at its points.
        texts: shown beside the value when the pointer is on a point; empty for none.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    color: str
    shape: str = "line"
    texts: Sequence[str] = ()


def line_figure(
    series: Sequence[Series], *, x_title: str, y_title: str = "", percent: bool = False, from_zero: bool = False
) -> dict[str, Any]:
    """A chart of lines and dots.

    Args:
        series: what to draw.
        x_title, y_title: the axes' titles.
        percent: whether values are fractions, shown in per cent.
        from_zero: whether the y axis begins at 0.

    Example:
        >>> figure = line_figure([Series(name="run", x=[1, 2], y=[0.5, None], color=COLORS[0])], x_title="epoch")
        >>> figure["data"][0]["y"], figure["layout"]["xaxis"]["title"]["text"]
        ([0.5, None], 'epoch')
    """
    import plotly.graph_objects as plotly

    figure = plotly.Figure()
    value, place = "%{y:.1%}" if percent else "%{y:.5g}", _text(x_title).replace("%{", "% {")
    for one in series:
        lines = one.shape != "dot" and sum(value is not None for value in one.y) > 1
        mode = "lines" if lines else "markers"
        if lines and one.shape != "plain" and len(one.y) <= _MAX_MARKED:
            mode += "+markers"
        text = "<br>%{customdata}" if one.texts else ""
        figure.add_scatter(
            x=list(one.x),
            y=list(one.y),
            name=_text(one.name),
            mode=mode,
            line={"color": one.color, "width": 2, "dash": _DASHES.get(one.shape, "solid")},
            marker={"color": one.color, "size": 9 if one.shape == "dot" else 5},
            customdata=list(map(_text, one.texts)) or None,
            cliponaxis=False,
            hoverlabel={"bordercolor": one.color},
            hovertemplate=f"{value}<br>{place} %{{x}}{text}<extra>%{{fullData.name}}</extra>",
        )
    axis: dict[str, Any] = {"title": {"text": _text(y_title)}} if y_title else {}
    axis |= {"tickformat": ".0%"} if percent else {}
    axis |= {"rangemode": "tozero" if from_zero else "normal", "range": _range_of_equal(series, from_zero=from_zero)}
    figure.update_yaxes(**axis)
    figure.update_xaxes(title={"text": _text(x_title)}, dtick=_step_of_whole(series))
    return _finished(figure)


def _range_of_equal(series: Sequence[Series], *, from_zero: bool) -> list[float] | None:
    """A range for values that are all the same, narrow or from 0; None for others, whose range follows from them."""
    values = {value for one in series for value in one.y if value is not None}
    if len(values) != 1:
        return None
    [value] = values
    if from_zero and value >= 0:
        return [0.0, 1.1 * value or 1.0]
    around = 0.1 * abs(value) or 1.0
    return [value - around, value + around]


def _step_of_whole(series: Sequence[Series]) -> int | None:
    """1 for an axis of few whole numbers, such as epochs, which has no ticks between them."""
    values = [value for one in series for value in one.x]
    if values and all(isinstance(value, int) for value in values) and max(values) - min(values) <= _MAX_WHOLE:
        return 1
    return None


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of a bar chart.

    Args:
        label: written above it.
        value: its length.
        low, high: the range of its measurements; None for none.
        color: as in CSS.
        meaning: what the color means.
        text: shown behind the value when the pointer is on it.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    color: str
    meaning: str = ""
    text: str = ""


def bar_figure(bars: Sequence[Bar], *, x_title: str) -> dict[str, Any]:
    """A chart of horizontal bars with their labels above them, which leaves the whole width to the bars.

    Args:
        bars: from top to bottom.
        x_title: the title of the value axis.

    Example:
        >>> figure = bar_figure([Bar(label="XLA", value=100.0, color=COLORS[0])], x_title="examples/s")
        >>> figure["layout"]["annotations"][0]["text"]
        'XLA'
    """
    import plotly.graph_objects as plotly

    figure = plotly.Figure()
    places = list(range(len(bars)))
    figure.add_bar(
        x=[bar.value for bar in bars],
        y=places,
        orientation="h",
        width=0.36,
        marker={"color": [bar.color for bar in bars]},
        hoverlabel={"bordercolor": [bar.color for bar in bars]},
        customdata=[[_text(bar.label), _text(bar.text)] for bar in bars],
        hovertemplate="%{x:,.5g}<br>%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [0 if bar.high is None else bar.high - bar.value for bar in bars],
            "arrayminus": [0 if bar.low is None else bar.value - bar.low for bar in bars],
            "color": MUTED,
            "thickness": 1.5,
            "width": 4,
        },
    )
    for place, bar in zip(places, bars, strict=True):
        figure.add_annotation(
            x=0, xref="paper", y=place, text=_text(_cut(bar.label)), showarrow=False, xanchor="left", yshift=18
        )
    figure.update_yaxes(visible=False, range=[len(bars) - 0.5, -0.8])
    figure.update_xaxes(title={"text": _text(x_title)}, rangemode="tozero")
    return _finished(figure, height=90 + 50 * len(bars))


def bar_chart(bars: Sequence[Bar], *, x_title: str, title: str, description: str, note: str = "") -> Chart:
    """A chart of horizontal bars, with what their colors mean in its legend.

    Args:
        bars: from top to bottom.
        x_title: the title of the value axis.
        title, description, note: as in `Chart`.
    """
    colors = {bar.meaning: bar.color for bar in bars}
    legend = tuple(LegendEntry(label=meaning, color=color, shape="dot") for meaning, color in colors.items())
    figure = bar_figure(bars, x_title=x_title)
    return Chart(title=title, description=description, figure=figure, legend=legend, note=note)


def with_logarithmic_axes(figure: Mapping[str, Any], *, only_x: bool = False) -> dict[str, Any]:
    """The same chart with logarithmic axes, with a tick at each power of ten.

    Args:
        figure: a chart of `line_figure`.
        only_x: leave the y axis linear.

    Example:
        >>> figure = line_figure([Series(name="a", x=[1, 100], y=[1, 2], color=COLORS[0])], x_title="x")
        >>> layout = with_logarithmic_axes(figure, only_x=True)["layout"]
        >>> layout["xaxis"]["type"], layout["yaxis"].get("type")
        ('log', None)
    """
    logarithmic = {"type": "log", "exponentformat": "power", "dtick": 1}
    names = ("xaxis",) if only_x else ("xaxis", "yaxis")
    axes = {name: {**figure["layout"][name], **logarithmic} for name in names}
    return {**figure, "layout": {**figure["layout"], **axes}}


def _finished(figure: Figure, *, height: int = HEIGHT) -> dict[str, Any]:
    """The figure as JSON data; texts and grid get their colors from the page."""
    figure.update_layout(
        template="none",
        autosize=True,
        height=height,
        showlegend=False,
        margin={"l": 8, "r": 12, "t": 12, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        hoverlabel={"namelength": -1, "bgcolor": _HOVER, "font": {"family": "system-ui, sans-serif"}},
        dragmode=False,
    )
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(automargin=True, zeroline=False, fixedrange=True, title_standoff=8, gridwidth=1, nticks=6)
    found: dict[str, Any] = json.loads(figure.to_json())
    return {"data": found["data"], "layout": found["layout"]}


def _text(text: str) -> str:
    """A text without markup: Plotly reads a part of HTML in texts."""
    return escape(text, quote=False)


def _cut(text: str, length: int = 38) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
