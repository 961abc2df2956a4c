"""A table of examples, ranked by anomaly score."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from os import PathLike

import numpy as np

from tfaccel.errors import DataError, ReportError
from tfaccel.files import whole_file
from tfaccel.local_path import local_path


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
