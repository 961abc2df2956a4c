"""What a report's page is made of: sections with texts, tables, charts and pictures, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


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
