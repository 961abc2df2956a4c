"""`TableOptions`: how to read a user's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfaccel.data.tables.column_kinds import kinds_from_text
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

CLASS_WEIGHTS = ("auto", "balanced", "none")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How to read a user's table.

    Args:
        target: the column to predict.
        column_kinds: column -> "numeric", "categorical", "date" or "ignored", to override the inferred kinds; or a
            string such as "zip=categorical,id=ignored".
        encoding: Python's name of the encoding of CSV files.
        class_weights: "balanced": all classes have equal weight; "none": all rows do; "auto": balanced if the largest
            class has more than three times the rows of the smallest.
        min_category_rows: categories in fewer training rows are merged as rare.
        num_buckets: column of categories -> number of codes that its categories share by their hash.

    Raises:
        DataError: if a value is invalid.

    Example:
        >>> TableOptions(target="price", column_kinds="zip=categorical").column_kinds
        {'zip': 'categorical'}
    """

    target: str | None = None
    column_kinds: Mapping[str, str] | str = field(default_factory=dict, hash=False)
    encoding: str = "utf-8"
    class_weights: str = "auto"
    min_category_rows: int = 5
    num_buckets: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        kinds: Any = self.column_kinds
        object.__setattr__(self, "column_kinds", kinds_from_text(kinds) if isinstance(kinds, str) else dict(kinds))
        if self.class_weights not in CLASS_WEIGHTS:
            hint = did_you_mean(str(self.class_weights), CLASS_WEIGHTS) or f" Values: {', '.join(CLASS_WEIGHTS)}."
            raise DataError(f"There are no class weights {self.class_weights!r}.{hint}")
        if type(self.min_category_rows) is not int or self.min_category_rows < 1:
            raise DataError(
                "`min_category_rows` must be a whole number of at least 1. "
                f"Received: min_category_rows={self.min_category_rows!r}."
            )

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of columns that the user gave."""
        return dict(self.column_kinds)  # type: ignore[arg-type]
