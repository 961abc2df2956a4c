"""A table for people that sets what was trained beside a baseline."""

from __future__ import annotations

from collections.abc import Mapping


def comparison_lines(results: Mapping[str, Mapping[str, float | None]], *, digits: int = 4) -> list[str]:
    """Lines of a table with a row for each model and a column for each metric.

    Arguments:
        results: model -> metric -> value; a metric that a model lacks, or that is None, is shown as a dash.
        digits: digits behind the point.

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
    lines = [" " * first + "".join(f"  {metric}" for metric in metrics)]
    for name, values in results.items():
        cells = ["-" if values.get(metric) is None else f"{values[metric]:.{digits}f}" for metric in metrics]
        padded = (f"  {cell:>{len(metric)}}" for cell, metric in zip(cells, metrics, strict=True))
        lines.append(f"{name:<{first}}" + "".join(padded))
    return lines
