"""`InteractionSet`: interactions of users with items, encoded, and split into a training and a test part."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.interactions.catalogue import Catalogue
from tfaccel.data.interactions.interaction_options import InteractionOptions
from tfaccel.data.tables.column_kinds import as_numbers
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.tables.tabular_files import read_tables
from tfaccel.data.tables.tabular_set import TabularSet, make_tabular_set
from tfaccel.errors import DataError
from tfaccel.short_repr import short_repr


@short_repr
@dataclass(frozen=True, kw_only=True)
class InteractionSet:
    """Interactions prepared for training.

    Args:
        table: the encoded rows; targets are 1 for a click and 0 otherwise.
        user_names, item_names: the columns of the encoding that describe users and items, ids first.
        catalogue: all users and items.
        true_probabilities: the probability that each click of the test rows was drawn with; None if it is unknown.
    """

    table: TabularSet
    user_names: tuple[str, ...]
    item_names: tuple[str, ...]
    catalogue: Catalogue
    true_probabilities: np.ndarray | None = None


def read_interactions(
    data_dir: str | os.PathLike[str], *, bad_data: BadData | None = None, **options: Any
) -> InteractionSet:
    """The interactions in a CSV or Parquet file, or in a folder with the files `train` and `test`.

    Of one file, a fifth of the rows, always the same, is held out for testing. Rows without a label are dropped.

    Args:
        data_dir: the file or folder.
        bad_data: what to do with damaged rows; None for `BadData()`, which raises an error.
        **options: fields of `tfaccel.data.interactions.interaction_options.InteractionOptions`.

    Raises:
        DataError: if the table cannot be used; the message names the column, and the row if there is one.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "views.csv")
        ...     _ = path.write_text("user,item,click\\n" + "anna,tea,1\\nbert,cake,0\\n" * 10)
        ...     read_interactions(path).table.report.num_test_rows
        4
    """
    how = InteractionOptions(**options)
    columns = (*how.columns_of_users, *how.columns_of_items, how.label_column)
    tables = read_tables(data_dir, how.table_options, classification=False, columns=columns, bad_data=bad_data)
    return make_interaction_set(tables[0], how, test_table=tables[1] if len(tables) > 1 else None)


def make_interaction_set(
    table: Table,
    options: InteractionOptions,
    *,
    test_table: Table | None = None,
    true_probabilities: np.ndarray | None = None,
) -> InteractionSet:
    """Prepares interactions for training.

    Args:
        table: the training rows, or all rows if there is no test table.
        options: the roles of its columns.
        test_table: the test rows.
        true_probabilities: the probability that each click of the test rows was drawn with, if known.

    Raises:
        DataError: if ids or labels cannot be used.
    """
    tables = [_with_clicks(one, options) for one in (table, test_table) if one is not None]
    for one in tables:
        _check_clicks(one.column(options.label_column).values, f"the rows of {one.source}", options)
    for name in (options.user_column, options.item_column):
        distinct = {text for text in table.column(name).texts().tolist() if text is not None}
        if len(distinct) < 2:
            found = f"{distinct.pop()!r} only" if distinct else "none"
            raise DataError(f"Column {name!r} of {table.source} must have at least two ids. Received: {found}.")
    prepared = make_tabular_set(
        tables[0],
        options.table_options,
        classification=False,
        test_table=tables[1] if len(tables) > 1 else None,
    )
    for part, noun in ((prepared.train, "training"), (prepared.test, "test")):
        _check_clicks(part.targets, f"the {noun} rows of {table.source}", options)
    encoding = prepared.encoding
    sources = [(column.name, column.source) for column in encoding.numeric]
    sources = [*((column.name, column.name) for column in encoding.categorical), *sources]
    of_users, of_items = options.columns_of_users, options.columns_of_items
    return InteractionSet(
        table=prepared,
        user_names=tuple(name for name, source in sources if source in of_users),
        item_names=tuple(name for name, source in sources if source in of_items),
        catalogue=Catalogue.of(table, encoding, of_users, of_items),
        true_probabilities=true_probabilities,
    )


def _with_clicks(table: Table, options: InteractionOptions) -> Table:
    """The table with 1, 0 and NaN, if missing, as labels."""
    name = options.label_column
    labels = as_numbers(table.column(name), table.source, advice=": a label is a number, such as 0 and 1 or a rating")
    clicks = np.where(np.isnan(labels), np.nan, labels >= options.positive_from)
    columns = (Column(name, clicks) if column.name == name else column for column in table.columns)
    return replace(table, columns=tuple(columns))


def _check_clicks(clicks: np.ndarray, rows: str, options: InteractionOptions) -> None:
    found = np.unique(clicks[~np.isnan(clicks)])
    if len(found) < 2:
        labels = "no label" if not len(found) else "only such labels" if found[0] else "only lower labels"
        raise DataError(
            f"Labels of at least positive_from={options.positive_from:g} are clicks, and {rows} need both clicks and "
            f"others in column {options.label_column!r}. Received: {labels}. Set positive_from, or add rows."
        )
