"""Tables that are printed at the end of a run."""

from collections.abc import Sequence

from tfaccel.errors import printable


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table to standard output; all columns but the first are right-aligned.

    Example:
        >>> show_table("Test accuracy", ["model", "accuracy"], [["lstm", "0.50"]])
        Test accuracy
        model  accuracy
        lstm       0.50
    """
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [columns, *rows]
    ]
    show_text("\n".join([title, *(line.rstrip() for line in lines)]))


def show_text(text: str) -> None:
    """Prints a text without control characters to the current standard output, even if it was redirected."""
    import sys

    sys.stdout.write(f"{printable(text)}\n")
