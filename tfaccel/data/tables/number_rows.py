"""Numeric rows of a table: standardized, imputed, and split into a training and a test part."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.images.image_set import TEST_FRACTION
from tfaccel.data.tables.bad_rows import kinds_of_columns, without_bad_values
from tfaccel.data.tables.column_kinds import NUMERIC, as_numbers, get_kind
from tfaccel.data.tables.files import read_table
from tfaccel.errors import DataError

logger = logging.getLogger("tfaccel")


@dataclass(frozen=True)
class NumberRows:
    """Standardized rows of a table's numeric columns.

    Args:
        names: the columns.
        values: float32, of shape (num_rows, num_columns), in the order of the table; each column has mean 0 and
            standard deviation 1 over the training rows.
        train, test: the row indices of both parts.
    """

    names: tuple[str, ...]
    values: np.ndarray
    train: np.ndarray
    test: np.ndarray


def read_number_rows(
    path: str | os.PathLike[str], *, encoding: str = "utf-8", bad_data: BadData | None = None
) -> NumberRows:
    """The numeric columns of a CSV or Parquet file; a fifth of the rows, always the same, is held out for testing.

    Missing values become the median of their column. Text columns and constant columns are dropped, which is logged
    once.

    Args:
        path: the file.
        encoding: of a CSV file.
        bad_data: what to do with damaged rows.

    Raises:
        DataError: if the file cannot be read, a numeric column holds text (row and column are named), or there are
            fewer than two usable columns or ten rows.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lines = ["a,b,name", *(f"{i},{i * i},x{i % 3}" for i in range(20))]
        ...     with open(f"{folder}/rows.csv", "w") as file:
        ...         _ = file.write("\\n".join(lines))
        ...     rows = read_number_rows(f"{folder}/rows.csv")
        >>> rows.names, rows.values.shape, len(rows.test)
        (('a', 'b'), (20, 2), 4)
    """
    bad_data = bad_data or BadData()
    table = read_table(path, encoding=encoding, bad_data=bad_data)
    if bad_data.skips:
        table = without_bad_values(table, kinds_of_columns(table, {}), bad_data)
    bad_data.finish(table.num_rows, "rows")
    if table.num_rows < 10:
        raise DataError(f"{table.source} has {table.num_rows} rows; it needs at least ten.")
    order = np.random.default_rng(0).permutation(table.num_rows)
    num_test = int(np.ceil(TEST_FRACTION * table.num_rows))
    test, train = np.sort(order[:num_test]), np.sort(order[num_test:])
    columns: dict[str, np.ndarray] = {}
    for column in table.columns:
        values = as_numbers(column, table.source) if get_kind(column) == NUMERIC else np.full(table.num_rows, np.nan)
        known = values[train][~np.isnan(values[train])]
        if len(known) and known.std() > 0:
            filled = np.where(np.isnan(values), np.median(known), values)
            columns[column.name] = (filled - filled[train].mean()) / filled[train].std()
    left_out = [name for name in table.names if name not in columns]
    if len(columns) < 2:
        raise DataError(
            f"{table.source} must have at least two columns of different numbers. "
            f"Received: {', '.join(columns) or 'none'}; dropped: {', '.join(left_out)}."
        )
    if left_out:
        logger.info("Dropped columns that are constant or not numeric: %s", ", ".join(left_out))
    return NumberRows(tuple(columns), np.stack(list(columns.values()), axis=1).astype(np.float32), train, test)
