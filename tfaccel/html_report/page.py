"""A report's page: sections with texts, tables, charts and pictures, as one HTML file that needs nothing else.

Numbers become texts for tables and cards here, with units taken from the names of fields.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from typing import Any

from tfaccel import __version__

NONE = "–"
_BYTES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SHARES = tuple(f"_{word}" for word in ("share", "fraction", "utilization"))


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """One line of a chart's legend.

    Args:
        label: what it stands for.
        color: as in CSS.
        shape: "line", "dashed", "long-dashed", "dotted" or "dot".
    """

    label: str
    color: str
    shape: str = "line"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """An interactive chart.

    Args:
        title: what it shows.
        description: the same with its main figures, for readers who cannot see it.
        figure: Plotly's figure, as JSON data.
        legend: what its colors mean.
        note: how to read it, or how it was measured.
    """

    title: str
    description: str
    figure: Mapping[str, Any]
    legend: tuple[LegendEntry, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts.

    Args:
        caption: what it shows.
        headings: one per column.
        rows: cells, as many as headings.
        numeric: columns that are aligned at the right.
        strong: (row, column) of the cells that stand out, such as the best ones.
        folded: shown only once the reader opens it.
        stacked: on narrow pages, a row's cells stand below each other; for few columns of long texts.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    strong: frozenset[tuple[int, int]] = frozenset()
    folded: bool = False
    stacked: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG picture that is part of the page.

    Args:
        title: where it comes from.
        description: the same, for readers who cannot see it.
        data_uri: the file.
        width, height: in pixels.
    """

    title: str
    description: str
    data_uri: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Message:
    """Sentences, each a paragraph.

    Args:
        lines: the sentences.
        tone: "plain", "good", "warning", or "quiet" for hints.
        badge: a word or two in front of them.
    """

    lines: tuple[str, ...]
    tone: str = "plain"
    badge: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A figure at the top of the page.

    Args:
        label: what it is.
        value: the figure, with its unit.
        note: what it is compared with, or how it was measured.
    """

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Figures side by side."""

    cards: tuple[Card, ...]


Block = Chart | Table | Picture | Message | Cards


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of a report.

    Args:
        anchor: its name in links.
        title: its heading.
        blocks: what it holds; a section without blocks is left out.
    """

    anchor: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def page(sections: Sequence[Section], *, title: str, subtitle: str) -> str:
    """The page as HTML.

    Every text is escaped. Only the page's own scripts may run, by their digests, and nothing may be loaded (Content
    Security Policy).

    Args:
        sections: what it shows; sections without blocks are left out.
        title: its heading.
        subtitle: a line below it.

    Example:
        >>> section = Section(anchor="a", title="A & B", blocks=[Message(lines=("1 < 2",))])
        >>> html = page([section], title="T", subtitle="")
        >>> "<h2 id=\\"a-title\\">A &amp; B</h2>" in html, "<p>1 &lt; 2</p>" in html
        (True, True)
    """
    import jinja2

    shown = [section for section in sections if section.blocks]
    figures = [dict(block.figure) for section in shown for block in section.blocks if isinstance(block, Chart)]
    scripts = [_plotly_script(), _own_file("page.js")] if figures else []
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)
    environment.filters["groupby_runs"] = _runs_of_a_kind
    return environment.from_string(_own_file("page.html.jinja")).render(
        sections=shown,
        title=title,
        subtitle=subtitle,
        figures=figures,
        scripts=scripts,
        script_sources=" ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'",
        style=_own_file("page.css"),
        version=__version__,
        date=datetime.now().strftime("%Y-%m-%d %H:%M"),
    )


def _runs_of_a_kind(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Any]]]:
    """Blocks of one class in a row, after its name: charts, and pictures, share a grid."""
    for kind, group in itertools.groupby(blocks, key=lambda block: type(block).__name__.lower()):
        yield kind, list(group)


def _own_file(name: str) -> str:
    return files("tfaccel.html_report").joinpath(name).read_text(encoding="utf-8")


def _plotly_script() -> str:
    """Plotly's library for browsers."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("</script", "<\\/script")  # in a string, which would end the element of the page


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def get_number(value: Any) -> float | None:
    """A finite number; None for anything else that a file may hold.

    Example:
        >>> get_number(3), get_number(float("nan")), get_number(True), get_number("3"), get_number(10**400)
        (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def get_unit(name: str) -> str:
    """The unit that a field's name contains: "examples/s", "per second", "s", "bytes", "share", or "".

    Example:
        >>> get_unit("examples_per_second"), get_unit("step_seconds"), get_unit("mfu"), get_unit("accuracy")
        ('examples/s', 's', 'share', '')
    """
    if name.endswith("_per_second"):
        return "examples/s" if name == "examples_per_second" else "per second"
    if name == "seconds" or name.endswith("_seconds"):
        return "s"
    if name.endswith("_bytes"):
        return "bytes"
    return "share" if name == "mfu" or name.endswith(_SHARES) else ""


def value_text(name: str, value: Any) -> str:
    """A number with the unit that its name contains.

    Example:
        >>> value_text("peak_bytes", 3 * 2**30), value_text("accuracy", 0.98765), value_text("step_seconds", 0.0012)
        ('3.0 GiB', '0.9877', '1.2 ms')
    """
    number = get_number(value)
    if number is None:
        return NONE
    unit = get_unit(name)
    if unit == "bytes":
        return bytes_text(number)
    if unit == "s":
        return seconds_text(number)
    if unit == "share":
        return f"{100 * number:.1f} %"
    if unit:
        return f"{number:,.0f} {unit}" if abs(number) >= 100 else f"{number:.3g} {unit}"
    return plain_number(number)


def plain_number(number: float) -> str:
    """A number with four significant digits, or with thousands separators.

    Example:
        >>> plain_number(0.98765), plain_number(1234567.0), plain_number(3.2e-7), plain_number(12.0)
        ('0.9877', '1,234,567', '3.2e-07', '12')
    """
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"


def bytes_text(number: float) -> str:
    """A number of bytes with a binary prefix.

    Example:
        >>> bytes_text(1536), bytes_text(12)
        ('1.5 KiB', '12 bytes')
    """
    for unit, size in _BYTES:
        if abs(number) >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number:,.0f} bytes"


def seconds_text(number: float) -> str:
    """A duration.

    Example:
        >>> seconds_text(0.00043), seconds_text(0.0123), seconds_text(15.94), seconds_text(4000)
        ('430 µs', '12.3 ms', '15.9 s', '1 h 7 min')
    """
    if abs(number) < 1e-3:
        return f"{number * 1e6:.0f} µs"
    if abs(number) < 1:
        return f"{number * 1e3:.3g} ms"
    if abs(number) < 120:
        return f"{number:.1f} s"
    minutes = round(number / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def setting_text(value: Any) -> str:
    """A setting's value, as on the command line.

    Example:
        >>> setting_text(True), setting_text(None), setting_text(["CPU:0", "CPU:1"]), setting_text(0.1)
        ('on', 'auto', 'CPU:0, CPU:1', '0.1')
    """
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def get_words(name: str) -> str:
    """A field's name in words, without its unit.

    Example:
        >>> get_words("input_wait_share"), get_words("examples_per_second"), get_words("mfu"), get_words("peak_bytes")
        ('input wait', 'examples per second', 'MFU', 'peak')
    """
    for end in ("_seconds", "_bytes", *_SHARES):
        if get_unit(name) and name.endswith(end) and name != end[1:]:
            name = name.removesuffix(end)
            break
    words = name.replace("_", " ")
    return " ".join(word.upper() if word in ("mfu", "cpu", "gpu") else word for word in words.split())
