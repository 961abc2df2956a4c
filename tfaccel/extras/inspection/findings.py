"""`Finding` and `InspectionReport`: the results of a data inspection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tfaccel.short_repr import short_repr

# Called from time to time with the current task, the amount done, and the total.
Progress = Callable[[str, int, int], None]


def no_progress(text: str, done: int, total: int) -> None:
    """Ignores all progress."""


@short_repr
@dataclass(frozen=True)
class Finding:
    """One thing about a dataset that its user should know.

    Args:
        kind: "missing values", "duplicate", "leak", "constant column", "unreadable file", "probable label error" ...
        where: the column, row or file.
        text: what was found, with numbers.
        advice: what to do about it; "" if that depends.
    """

    kind: str
    where: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Examples:
    """The names, parts, contents and labels of the examples of any dataset.

    Args:
        names: the name of each example, such as "row 3 of train.csv" or a path.
        parts: "train" or "test" for each.
        keys: a key for each, equal for equal contents.
        labels: the class of each as a string, or None if it has none. None instead of an array if there are no classes.
    """

    names: tuple[str, ...]
    parts: np.ndarray
    keys: tuple[Any, ...]
    labels: np.ndarray | None = None


@short_repr
@dataclass(frozen=True, kw_only=True)
class InspectionReport:
    """The result of inspecting a dataset.

    Args:
        path: the file or folder.
        kind: "table", "images" or "texts".
        shape: a description of one example.
        num_examples: part -> number.
        columns: column -> {"kind", "num_missing", "num_distinct", ...}; for tables.
        class_counts: class -> training examples.
        class_weights: class -> weight of its examples that gives all classes equal weight.
        num_bytes: size of all examples in memory during training.
        memory_bytes: free memory of this machine.
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
        """The report as JSON-serializable data."""
        return {**asdict(self), "fits_in_memory": self.fits_in_memory}
