"""The nouns of data inspection: findings, and the report that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

# Called now and then with what is being done, how much is done, and how much there is.
Progress = Callable[[str, int, int], None]


def no_progress(text: str, done: int, total: int) -> None:
    """Takes note of nothing."""


@dataclass(frozen=True)
class Finding:
    """One thing about a data set that its user should know.

    Args:
        kind: "missing values", "duplicate", "leak", "constant column", "unreadable file", "probable label error" ...
        where: the column, row or file.
        text: what was found, with figures.
        advice: what to do about it; "" where that depends.
    """

    kind: str
    where: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Examples:
    """What every kind of data has: names, parts, contents and labels of its examples.

    Args:
        names: what each example is called, such as "row 3 of train.csv" or a path.
        parts: "train" or "test" for each.
        keys: for each, a value that is the same for the same content.
        labels: the class of each as a text; None where it has none. None in place of the array where there are no
            classes.
    """

    names: tuple[str, ...]
    parts: np.ndarray
    keys: tuple[Any, ...]
    labels: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class InspectionReport:
    """What a data set is like.

    Args:
        path: the file or folder.
        kind: "table", "images" or "texts".
        shape: what one example is, in words.
        num_examples: part -> number.
        columns: column -> {"kind", "num_missing", "num_distinct", ...}; for tables.
        class_counts: class -> examples to train on.
        class_weights: class -> what one of its examples should count, so that all classes count the same.
        num_bytes: of all examples in memory, as they are trained on.
        memory_bytes: that are free on this machine.
        findings: what the user should know.
    """

    path: str
    kind: str
    shape: str
    num_examples: Mapping[str, int]
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    class_counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    class_weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    num_bytes: int = 0
    memory_bytes: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def fits_in_memory(self) -> bool:
        """Whether the examples take at most half of the free memory."""
        return self.num_bytes <= self.memory_bytes / 2

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-serialisable data."""
        return {**asdict(self), "fits_in_memory": self.fits_in_memory}
