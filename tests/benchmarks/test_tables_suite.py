"""The benchmark of tables, on a small scale."""

from tfaccel.benchmarks import tables_suite
from tfaccel.benchmarks.suite_options import SuiteOptions


def test_all_figures_are_measured():
    options = SuiteOptions(repetitions=2, scale=0.005, progress=lambda text: None)
    report = tables_suite.run_tables_suite(["csv", "parquet"], options)
    assert [figure.name for figure in report.figures] == ["csv"] * 3 + ["parquet"] * 3
    assert all(value > 0 for figure in report.figures for value in figure.values)
    assert [len(seconds) for seconds in report.raw["csv"].values()] == [2, 2]


def test_both_programs_make_arrays_of_the_same_columns(tmp_path):
    import pandas as pd

    pd.DataFrame(tables_suite.table_columns(300)).to_csv(tmp_path / "table.csv", index=False)
    mine = tables_suite._tfaccel(tmp_path / "table.csv")
    train, test, _ = tables_suite._pandas(tmp_path / "table.csv")
    num_columns = sum(array.shape[1] for array in mine.train.inputs.values())
    assert train.shape == (240, num_columns)
    assert len(test) == len(mine.test.targets)
    assert mine.report.ignored == {}
