"""The data of a tabular workload, from users' files or from scikit-learn; and rows of numbers without a target."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.class_labels import TEST_FRACTION
from tfaccel.data.epochs import Batches
from tfaccel.data.in_memory import TextBatches
from tfaccel.data.raw_input import TableInput
from tfaccel.data.tables.column_kinds import NUMERIC, as_numbers, get_kind, kinds_of_columns, without_bad_values
from tfaccel.data.tables.files import TABLE_SUFFIXES, read_table
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.tables.tabular_set import TableOptions, TabularPart, TabularSet, make_tabular_set
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean
from tfaccel.remote import readable_path

EMBEDDED_TARGET = "target"
_LOADERS = {"breast_cancer": "load_breast_cancer", "wine": "load_wine", "diabetes": "load_diabetes"}

logger = logging.getLogger("tfaccel")


def tabular_batches(data: TabularSet, *, one_hot: bool = False) -> TextBatches:
    """The batches of a tabular set: inputs, targets and, if classes have weights, a weight for each training row.

    Args:
        data: the tabular set.
        one_hot: whether to one-hot encode the classes.

    Example:
        >>> wine = make_tabular_set(embedded_table("wine"), TableOptions(target="target"), classification=True)
        >>> inputs, labels = next(iter(tabular_batches(wine, one_hot=True).train(32, seed=0, epoch=0)))
        >>> inputs["numbers"].shape, labels.shape
        (TensorShape([32, 13]), TensorShape([32, 3]))
    """

    def examples(part: TabularPart) -> tuple[Any, ...]:
        identity = np.eye(len(data.encoding.class_names), dtype=np.float32)
        return dict(part.inputs), identity[part.targets] if one_hot else part.targets[..., np.newaxis]

    train = examples(data.train)
    if data.class_weights is not None:
        train += (data.class_weights.astype(np.float32)[data.train.targets],)
    return TextBatches(train, examples(data.test), noun="rows")


def read_tabular_set(
    data_dir: str | os.PathLike[str], options: TableOptions, *, classification: bool, bad_data: BadData | None = None
) -> TabularSet:
    """Prepares the table in a file, or in a folder with the files `train` and `test` (.csv, .tsv or .parquet).

    Takes the arguments and raises the errors of `make_tabular_set` and `read_tables`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pets.csv")
        ...     _ = path.write_text("weight,kind\\n" + "4,cat\\n9,dog\\n" * 10)
        ...     read_tabular_set(path, TableOptions(target="kind"), classification=True).report.num_train_rows
        16
    """
    table, test_table = read_tables(data_dir, options, classification=classification, bad_data=bad_data)
    return make_tabular_set(table, options, classification=classification, test_table=test_table)


def read_tables(
    data_dir: str | os.PathLike[str],
    options: TableOptions,
    *,
    classification: bool,
    columns: Sequence[str] | None = None,
    bad_data: BadData | None = None,
) -> tuple[Table, Table | None]:
    """Reads the table in a file, and None; or the tables `train` and `test` in a folder.

    Args:
        data_dir: the file or folder.
        options: how to read them.
        classification: whether the target is a class; otherwise it is a number.
        columns: the columns to keep, in this order; None for all.
        bad_data: what to do with damaged rows, and with those whose values are not of their column's kind; None for an
            error.

    Raises:
        DataError: if a table cannot be read, or lacks a column.
    """
    path, bad_data = readable_path(data_dir, DataError), bad_data or BadData()
    files = [_part(path, "train"), _part(path, "test")] if path.is_dir() else [path]
    tables = [read_table(file, encoding=options.encoding, bad_data=bad_data) for file in files]
    if options.target is None:
        raise DataError(
            f"Say which column of {files[0]} is to be predicted: target=NAME (--target=NAME). "
            f"Columns: {', '.join(tables[0].names)}."
        )
    if columns is not None:
        tables = [replace(table, columns=tuple(map(table.column, columns))) for table in tables]
    if bad_data.skips:
        kinds = kinds_of_columns(tables[0], options.kinds)
        kinds |= {options.target: "" if classification else NUMERIC}
        tables = [without_bad_values(table, kinds, bad_data) for table in tables]
    bad_data.finish(sum(table.num_rows for table in tables), "rows")
    return tables[0], tables[1] if len(tables) > 1 else None


def _part(folder: Path, name: str) -> Path:
    found = [file for suffix in TABLE_SUFFIXES if (file := folder / f"{name}{suffix}").is_file()]
    if len(found) != 1:
        held = ", ".join(sorted(one.name for one in found or folder.iterdir())) or "an empty folder"
        raise DataError(
            f"The folder {folder} must hold one table called {name} (.csv, .tsv or .parquet). Received: {held:.200}. "
            "To split one table, give its file."
        )
    return found[0]


def embedded_table(name: str) -> Table:
    """One of scikit-learn's tables, the column "target" last: "breast_cancer", "wine" or "diabetes".

    Raises:
        DataError: for another name.

    Source: UCI machine learning repository (breast cancer Wisconsin diagnostic, wine); Efron et al., Least angle
    regression, 2004 (diabetes).

    Example:
        >>> embedded_table("wine").num_rows
        178
    """
    if name not in _LOADERS:
        hint = did_you_mean(str(name), _LOADERS) or f" Sets: {', '.join(_LOADERS)}."
        raise DataError(f"There is no embedded table {name!r}.{hint}")
    from sklearn import datasets

    options = {"scaled": False} if name == "diabetes" else {}
    data = getattr(datasets, _LOADERS[name])(**options)
    target = data.target.astype(np.float64)
    if "target_names" in data:
        target = np.array([str(data.target_names[number]) for number in data.target], dtype=object)
    columns = [
        Column(str(name).replace(" ", "_"), data.data[:, number].astype(np.float64))
        for number, name in enumerate(data.feature_names)
    ]
    return Table(name, (*columns, Column(EMBEDDED_TARGET, target)))


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


class TableData(Batches):
    """Batches of rows: a dictionary of inputs, targets and, if classes have weights, a sample weight for each row.

    Classes are one-hot encoded; other targets are numbers of shape (num_rows, 1). The table is `source`, a
    `TabularSet`.

    Args:
        data_dir: a CSV or Parquet file, or a folder with the tables train and test; None for an embedded table.
        embedded: the name of a table that comes with scikit-learn: "breast_cancer", "wine" or "diabetes".
        classification: whether the target is a class; otherwise it is a number.
        target: the column to predict.
        bad_data: what to do with damaged rows; None for `BadData()`, which raises an error.
        **options: further fields of `tfaccel.data.tables.tabular_set.TableOptions`.

    Raises:
        DataError: if the table cannot be used; the message names the column, and the row if there is one.

    Example:
        >>> inputs, labels = next(iter(TableData(embedded="wine", classification=True).train_data(32, seed=0, epoch=0)))
        >>> inputs["numbers"].shape, labels.shape
        (TensorShape([32, 13]), TensorShape([32, 3]))
    """

    source: TabularSet

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        embedded: str,
        classification: bool,
        target: str | None = None,
        bad_data: BadData | None = None,
        **options: Any,
    ) -> None:
        if data_dir is None:
            how = TableOptions(target=EMBEDDED_TARGET, **options)
            table = make_tabular_set(embedded_table(embedded), how, classification=classification)
        else:
            how = TableOptions(target=target, **options)
            table = read_tabular_set(data_dir, how, classification=classification, bad_data=bad_data)
        num_rows, raw_input = len(table.train.targets), TableInput.of(table.encoding)
        super().__init__(
            table,
            lambda: tabular_batches(table, one_hot=classification),
            num_train_examples=num_rows,
            several_epochs=True,
            takes_every=True,
            raw_input=raw_input,
        )
