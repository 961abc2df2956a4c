"""A report's page: sections with texts, tables, charts and pictures, as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from typing import Any, ClassVar

from tfaccel import __version__


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

    kind: ClassVar[str] = "chart"
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

    kind: ClassVar[str] = "table"
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

    kind: ClassVar[str] = "picture"
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

    kind: ClassVar[str] = "message"
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
    """Figures side by side.

    Args:
        cards: the figures.
    """

    kind: ClassVar[str] = "cards"
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
    """Blocks of the same kind in a row, which charts and pictures share a grid for."""
    for kind, group in itertools.groupby(blocks, key=lambda block: block.kind):
        yield kind, list(group)


def _own_file(name: str) -> str:
    return files("tfaccel.html_report").joinpath(name).read_text(encoding="utf-8")


def _plotly_script() -> str:
    """Plotly's library for browsers."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("</script", "<\\/script")  # in a string, which would end the element of the page


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
