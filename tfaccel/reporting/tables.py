"""Tables: printed at the end of a run, and files of ranked examples."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np

from tfaccel.errors import DataError, ReportError, printable
from tfaccel.files import whole_file
from tfaccel.local_path import local_path


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table to standard output; all columns but the first are right-aligned.

    Example:
        >>> show_table("Test accuracy", ["model", "accuracy"], [["lstm", "0.50"]])
        Test accuracy
        model  accuracy
        lstm       0.50
    """
    show_text("\n".join([title, *(line.rstrip() for line in _aligned([columns, *rows]))]))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row; all columns but the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def show_padding(grouped: float, whole: float) -> None:
    """Prints the share of padding in batches of texts of similar lengths, and in batches of full length.

    Args:
        grouped, whole: the shares, as `shares_of_padding` of `tfaccel.data.TextBatches` returns them.

    Example:
        >>> show_padding(0.083, 0.281)
        Padding fills 8 % of the batches; it would fill 28 % without --group_by_length.
    """
    shares = (f"{100 * share:.0f} %" for share in (grouped, whole))
    show_text("Padding fills {} of the batches; it would fill {} without --group_by_length.".format(*shares))


def show_text(text: str) -> None:
    """Prints a text without control characters to the current standard output, even if it was redirected."""
    sys.stdout.write(f"{printable(text)}\n")


def comparison_lines(results: Mapping[str, Mapping[str, float | None]], *, digits: int = 4) -> list[str]:
    """Returns the lines of a table with one row per model and one column per metric.

    Args:
        results: model -> metric -> value; a missing metric or None is shown as a dash.
        digits: decimal places.

    Example:
        >>> results = {"network": {"accuracy": 0.98, "log loss": 0.12}, "gradient boosting": {"accuracy": 0.97}}
        >>> for line in comparison_lines(results, digits=2):
        ...     print(line)
                           accuracy  log loss
        network                0.98      0.12
        gradient boosting      0.97         -
    """
    metrics = list(dict.fromkeys(metric for values in results.values() for metric in values))
    cells = [[values.get(metric) for metric in metrics] for values in results.values()]
    texts = [["-" if value is None else f"{value:.{digits}f}" for value in row] for row in cells]
    return _aligned([["", *metrics], *([name, *row] for name, row in zip(results, texts, strict=True))])


def show_comparison(
    results: Mapping[str, Mapping[str, float | None]], *, heading: Sequence[str] = (), digits: int = 4
) -> None:
    """Prints a table with one row per model and one column per metric.

    Args:
        results: model -> metric -> value; a missing metric or None is shown as a dash.
        heading: lines above the table.
        digits: decimal places.

    Example:
        >>> show_comparison({"network": {"accuracy": 0.98}}, heading=["114 rows"], digits=2)
        114 rows
                 accuracy
        network      0.98
    """
    show_text("\n".join([*heading, *comparison_lines(results, digits=digits)]))


def save_anomalies(
    path: str | PathLike[str], names: Sequence[str], classes: Sequence[str], scores: np.ndarray
) -> np.ndarray:
    """Writes a CSV file with one line per example, lowest score first.

    Args:
        path: the file to write.
        names, classes: name and class of each example.
        scores: log-likelihood of each example under the model.

    Returns:
        The examples' indices in the order of the file.

    Raises:
        DataError: if names, classes and scores differ in length.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_anomalies(f"{folder}/a.csv", ["x", "y"], ["cat", "cat"], np.array([-1.0, -5.5])).tolist()
        ...     Path(f"{folder}/a.csv").read_text().splitlines()
        [1, 0]
        ['rank,example,class,score', '1,y,cat,-5.5000', '2,x,cat,-1.0000']
    """
    if not len(names) == len(classes) == len(scores):
        raise DataError(
            "Each example needs a name, a class and a score. "
            f"Received: {len(names)} names, {len(classes)} classes, {len(scores)} scores."
        )
    order = np.argsort(scores, kind="stable")
    with (
        whole_file(local_path(path, ReportError)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["rank", "example", "class", "score"])
        writer.writerows([i + 1, names[row], classes[row], f"{scores[row]:.4f}"] for i, row in enumerate(order))
    return order
