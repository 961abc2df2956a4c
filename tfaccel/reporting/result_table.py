"""Tables for users at the end of a run."""

from collections.abc import Sequence


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Shows a table on standard output; all columns but the first are set to the right.

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
    """Shows a text on standard output, whatever stands there now."""
    import sys

    sys.stdout.write(f"{text}\n")
