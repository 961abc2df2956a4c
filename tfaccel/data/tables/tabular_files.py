"""Tabular sets from a user's files or from scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.tables.bad_rows import kinds_of_columns, without_bad_values
from tfaccel.data.tables.column_kinds import NUMERIC
from tfaccel.data.tables.files import CSV_SUFFIXES, PARQUET_SUFFIXES, read_table
from tfaccel.data.tables.options import TableOptions
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.tables.tabular_set import TabularSet, make_tabular_set
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean
from tfaccel.local_path import local_path

EMBEDDED_TARGET = "target"
_LOADERS = {"breast_cancer": "load_breast_cancer", "wine": "load_wine", "diabetes": "load_diabetes"}


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
    tables = read_tables(data_dir, options, classification=classification, bad_data=bad_data)
    test_table = tables[1] if len(tables) > 1 else None
    return make_tabular_set(tables[0], options, classification=classification, test_table=test_table)


def read_tables(
    data_dir: str | os.PathLike[str],
    options: TableOptions,
    *,
    classification: bool,
    columns: Sequence[str] | None = None,
    bad_data: BadData | None = None,
) -> list[Table]:
    """Reads the table in a file, or the tables `train` and `test` in a folder.

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
    path, bad_data = local_path(data_dir, DataError), bad_data or BadData()
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
    return tables


def _part(folder: Path, name: str) -> Path:
    found = [folder / f"{name}{suffix}" for suffix in CSV_SUFFIXES + PARQUET_SUFFIXES]
    found = [file for file in found if file.is_file()]
    if len(found) != 1:
        raise DataError(
            f"The folder {folder} must hold one table called {name} (.csv, .tsv or .parquet). Received: {len(found)}."
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
