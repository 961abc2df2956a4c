"""Tables that installed packages bundle are read as pandas reads them."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from tfaccel.data.tables.files import read_table


def bundled():
    """Plotly's tables, if it is installed."""
    plotly = pytest.importorskip("plotly")
    return sorted(Path(plotly.__file__).parent.glob("package_data/datasets/*.csv.gz"))


@pytest.mark.slow
def test_bundled_tables_are_read_as_pandas_reads_them(tmp_path):
    pandas = pytest.importorskip("pandas")
    files = bundled()
    assert files
    for file in files:
        path = tmp_path / file.stem
        path.write_bytes(gzip.decompress(file.read_bytes()))
        frame, table = pandas.read_csv(path, engine="python"), read_table(path)
        assert frame.shape == (table.num_rows, len(table.columns))
        for (name, wanted), column in zip(frame.items(), table.columns, strict=True):
            assert wanted.isna().tolist() == column.missing.tolist(), name
            if pandas.api.types.is_numeric_dtype(wanted) and wanted.dtype != bool:
                assert np.array_equal(wanted.to_numpy(np.float64), column.numbers[0], equal_nan=True), name
