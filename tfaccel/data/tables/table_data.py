"""The data of a tabular workload: batches of raw numbers and category codes, with their targets."""

from __future__ import annotations

import os
from typing import Any

from tfaccel.data.bad_data import BadData
from tfaccel.data.epochs import Batches
from tfaccel.data.raw_input import TableInput
from tfaccel.data.tables.options import TableOptions
from tfaccel.data.tables.tabular_files import EMBEDDED_TARGET, embedded_table, read_tabular_set
from tfaccel.data.tables.tabular_set import TabularSet, make_tabular_set


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
        **options: further fields of `tfaccel.data.tables.options.TableOptions`.

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
        self._one_hot = classification
        num_rows, raw_input = len(table.train.targets), TableInput.of(table.encoding)
        super().__init__(
            table,
            self._batches,
            num_train_examples=num_rows,
            several_epochs=True,
            takes_every=True,
            raw_input=raw_input,
        )

    def _batches(self) -> Any:
        from tfaccel.data.tables.batches import TabularBatches

        return TabularBatches(self.source, one_hot=self._one_hot)
