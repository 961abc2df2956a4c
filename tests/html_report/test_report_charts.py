"""Charts of a report: colors and texts with enough contrast on every background, and numbers that are none."""

import re

from tfaccel.html_report import figures, page
from tfaccel.html_report.page import _own_file


def test_colors_can_be_seen_on_both_backgrounds():
    style = _own_file("page.css")
    themes = [
        dict(re.findall(r"--(\w+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    ]
    assert len(themes) == 3  # light, dark, paper
    for theme in themes:
        for background in (theme["page"], theme["panel"]):
            assert [color for color in figures.COLORS if contrast(color, background) < 3] == []
            inks = ("ink", "soft", "link", "good", "warning")
            assert [name for name in inks if contrast(theme[name], background) < 4.5] == []


def test_texts_beside_the_pointer_can_be_read():
    figure = figures.line_figure([figures.Series(name="a", x=[1], y=[1.0], color=figures.COLORS[0])], x_title="x")
    bars = figures.bar_figure([figures.Bar(label="a", value=1.0, color=figures.COLORS[1])], x_title="x")
    style = _own_file("page.css")
    assert ".hovertext text { fill: #ffffff !important; }" in style
    assert f".hovertext rect {{ fill: {figures._HOVER} !important; fill-opacity: 1 !important; }}" in style
    for one, color in ((figure, figures.COLORS[0]), (bars, [figures.COLORS[1]])):
        background = one["layout"]["hoverlabel"]["bgcolor"]
        assert contrast("#ffffff", background) >= 4.5
        assert one["data"][0]["hoverlabel"]["bordercolor"] == color
    assert [color for color in figures.COLORS if contrast(color, background) < 3] == []


def contrast(one, other):
    """The contrast ratio of WCAG 2.2."""

    def luminance(color):
        parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_that_are_none():
    assert page.value_text("loss", float("inf")) == page.value_text("loss", "x") == "–"
