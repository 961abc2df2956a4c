"""Numeric rows: standardized over the training part and imputed; other columns are dropped or refused."""

import numpy as np
import pytest

from tfaccel.data.tables.table_data import read_number_rows
from tfaccel.errors import DataError


def write(path, header, rows):
    path.write_text("\n".join([header, *rows]))
    return path


def test_columns_are_standardised_and_gaps_filled(tmp_path):
    path = write(tmp_path / "t.csv", "a,b,same,name", [f"{i},{'' if i == 3 else -i},1,n{i % 2}" for i in range(30)])
    rows = read_number_rows(path)
    assert rows.names == ("a", "b")
    assert (rows.values.shape, rows.values.dtype) == ((30, 2), np.float32)
    assert np.isfinite(rows.values).all()
    assert sorted([*rows.train, *rows.test]) == list(range(30))
    assert rows.values[rows.train].mean(axis=0) == pytest.approx(0, abs=1e-6)
    assert rows.values[rows.train].std(axis=0) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(
    ("header", "row", "num_rows", "message"),
    [
        ("a,b", "{i},{i}", 9, "has 9 rows; it needs at least ten"),
        ("a,b", "{i},x{k}", 20, "at least two columns of different numbers. Received: a; dropped: b."),
        ("a,b", "1,{k}", 20, "at least two columns of different numbers. Received: b; dropped: a."),
    ],
)
def test_tables_without_enough_numbers_are_refused(tmp_path, header, row, num_rows, message):
    path = write(tmp_path / "t.csv", header, [row.format(i=i, k=i % 3) for i in range(num_rows)])
    with pytest.raises(DataError, match=message):
        read_number_rows(path)


def test_text_among_numbers_is_named(tmp_path):
    path = write(tmp_path / "t.csv", "a,b", [f"{i},{'oops' if i == 4 else i}" for i in range(20)])
    with pytest.raises(DataError, match=r"Column 'b' of .* row 5 below the header has 'oops'"):
        read_number_rows(path)
