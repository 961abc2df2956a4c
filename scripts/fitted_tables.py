"""Tables in narrow terminals: no word is broken, and no column is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

_PADDING = 1  # characters between columns without lines
_SHORT = 40  # characters of a value that follows others on a line


class TableConsole(Console):
    """A console that lays out tables so that every word fits into its column.

    A table that is too wide gives up its lines. If its longest words do not fit beside each other even then, each of
    its rows is printed as text, each value after its heading.

    Args:
        options: see `rich.console.Console`.

    Raises:
        BrokenPipeError: while printing, if nobody reads the output any more.

    Example:
        >>> console = TableConsole(width=32)
        >>> table = Table("strategy", "reason", box=None)
        >>> table.add_row("multi_worker_mirrored", "2 workers have a GPU each")
        >>> with console.capture() as captured:
        ...     console.print(table)
        >>> for line in captured.get().splitlines():
        ...     print(line.rstrip())
         strategy               reason
         multi_worker_mirrored  2
                                workers
                                have a
                                GPU
                                each
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.push_render_hook(_FittedTables(self))

    def on_broken_pipe(self) -> None:
        """Leaves it to the command, where rich's own ends the program with status 1."""
        raise BrokenPipeError


class _FittedTables(RenderHook):
    def __init__(self, console: Console) -> None:
        self._console = console

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Returns what is printed: titles on lines of their own, and tables that fit."""
        found: list[ConsoleRenderable] = []
        for one in renderables:
            if isinstance(one, Table):
                if one.title:
                    found.append(Text.assemble((str(one.title), "table.title")))
                    one.title = None
                found.append(self._fitted(one))
            else:
                found.append(one)
        return found

    def _fitted(self, table: Table) -> Table:
        if self._set_widths(table):
            return table
        if table.box is not None:
            table.box, table.padding = None, (0, _PADDING, 0, 0)
            if self._set_widths(table):
                return table
        records = _as_records(table)
        return records if self._set_widths(records) else _as_lines(records)

    def _set_widths(self, table: Table) -> bool:
        """Gives each column at least the width of its longest word; returns whether that fits."""
        sizes = [self._sizes(column) for column in table.columns]
        least = [most if column.no_wrap else size for column, (size, most) in zip(table.columns, sizes, strict=True)]
        free = self._console.width - sum(least) - _lines_and_padding(table)
        if free < 0:
            return False
        wanted = [most - size for size, (_, most) in zip(least, sizes, strict=True)]
        for column, size, more in zip(table.columns, least, _shares(wanted, free), strict=True):
            column.width = size + more
        return True

    def _sizes(self, column: Column) -> tuple[int, int]:
        """The widths of a column's longest word and of its longest line."""
        options = self._console.options.update(max_width=10**6)
        cells = [column.header, *column.cells]
        found = [Measurement.get(self._console, options, cell) for cell in cells]
        least, most = max(one.minimum for one in found), max(one.maximum for one in found)
        return least, most if column.max_width is None else max(least, min(most, column.max_width))


def _lines_and_padding(table: Table) -> int:
    _, right, _, left = table.padding
    lines = 0 if table.box is None else len(table.columns) + 1
    return lines + len(table.columns) * (left + right)


def _shares(wanted: Sequence[int], free: int) -> list[int]:
    """Divides free characters among columns: those that want least get all, the others equal shares.

    Example:
        >>> _shares([2, 50, 9], 25)
        [2, 14, 9]
    """
    shares = [0] * len(wanted)
    for done, place in enumerate(sorted(range(len(wanted)), key=lambda one: wanted[one])):
        shares[place] = min(wanted[place], free // (len(wanted) - done))
        free -= shares[place]
    return shares


def _as_records(table: Table) -> Table:
    """A table of two columns: the first cell of each row, and all others as text, each after its heading.

    A table without headings has two columns already.
    """
    records = Table(box=None, show_header=False, pad_edge=False, padding=(0, _PADDING * 2, 0, 0))
    records.add_column()
    records.add_column()
    headings = [" ".join(str(column.header).split()) for column in table.columns]
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        if table.show_header:
            text = Text()
            for heading, cell in zip(headings[1:], others, strict=True):
                if str(cell):
                    between = "" if not text else "\n" if len(str(cell)) > _SHORT or str(text)[-1] == "." else ", "
                    text.append(between).append(heading and f"{heading}: ", "dim").append(cell)
            others = [text]
        records.add_row(first, *others)
    return records


def _as_lines(records: Table) -> Table:
    """Each heading on a line of its own, above its value; words that are longer than a line are broken."""
    lines = Table(box=None, show_header=False, pad_edge=False, padding=0)
    lines.add_column(overflow="fold")
    for heading, value in zip(*(column.cells for column in records.columns), strict=True):
        lines.add_row(heading)
        if str(value):
            lines.add_row(Padding(value, (0, 0, 0, 2)))
    return lines
