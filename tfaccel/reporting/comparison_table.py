"""A table that compares models by their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfaccel.reporting.result_table import show_text


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
    first = max((len(name) for name in results), default=0)
    columns = []
    for metric in metrics:
        found = [values.get(metric) for values in results.values()]
        cells = [metric, *("-" if value is None else f"{value:.{digits}f}" for value in found)]
        columns.append([f"{cell:>{max(map(len, cells))}}" for cell in cells])
    names = ["", *results]
    return ["  ".join([f"{name:<{first}}", *(column[row] for column in columns)]) for row, name in enumerate(names)]


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
