"""The benchmark of tables: from a file to arrays to train on, with tfaccel and with pandas and scikit-learn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.data.tables.table_data import read_tabular_set
from tfaccel.data.tables.tabular_set import TableOptions
from tfaccel.errors import TfaccelError

TABLES_FIGURES = ("csv", "parquet")
NUM_ROWS = 200_000
MAX_RATIO = 1.5  # seconds of tfaccel / seconds of pandas and scikit-learn
_TARGET, _DAY, _CATEGORIES = "y", "day", {"color": 3, "shop": 20, "city": 300}


def run_tables_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Reads and prepares a table of 12 columns, one of them dates, from the named kinds of files, with both in turn.

    Raises:
        TfaccelError: if pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise TfaccelError("This suite compares with pandas, which is not installed: pip install pandas.") from error
    table = pd.DataFrame(table_columns(max(100, round(NUM_ROWS * options.scale))))
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, f"table.{name}") for name in names}
        for name, file in files.items():
            (table.to_csv if name == "csv" else table.to_parquet)(file, index=False)
            options.progress(name)
            raw[name] = _seconds(file, options.repetitions)
            pairs = list(zip(raw[name]["tfaccel"], raw[name]["pandas"], strict=True))
            seconds, cpu_seconds = (tuple(mine[at] / other[at] for mine, other in pairs) for at in (0, 1))
            quantity = f"seconds from a {name} file to arrays, tfaccel / pandas and ColumnTransformer"
            figures.append(
                Figure(name=name, quantity=quantity, values=seconds, cpu_values=cpu_seconds, at_most=MAX_RATIO)
            )
            for program, times in raw[name].items():
                figures.append(Figure(name=name, quantity=f"seconds, {program}", values=tuple(one for one, _ in times)))
    return Report(suite="tables", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw)


def table_columns(num_rows: int) -> dict[str, np.ndarray]:
    """Five columns of decimals, one with gaps, two of integers, three of categories, one of dates, and a target.

    Example:
        >>> len(table_columns(100))
        12
    """
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{number}": np.round(rng.normal(100, 20, num_rows), 4) for number in range(5)}
    columns[_TARGET] = np.round(2 * columns["x0"] + rng.normal(0, 1, num_rows), 3)
    columns["x1"][rng.random(num_rows) < 0.05] = np.nan
    columns |= {"count": rng.integers(0, 1000, num_rows), "code": rng.integers(0, 10**7, num_rows)}
    for name, size in _CATEGORIES.items():
        columns[name] = np.array([f"{name} {number}" for number in range(size)])[rng.integers(0, size, num_rows)]
    minutes = np.datetime64("2020-01-01T00:00") + rng.integers(0, 60 * 24 * 1000, num_rows)
    columns[_DAY] = np.char.replace(minutes.astype(str), "T", " ")
    return columns


def _seconds(file: Path, repetitions: int) -> dict[str, list[tuple[float, float]]]:
    """Program -> seconds and CPU seconds of each repetition."""
    programs: dict[str, Callable[[Path], object]] = {"tfaccel": _tfaccel, "pandas": _pandas}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for repetition in range(repetitions + 1):  # the first one warms up
        for name, program in programs.items():
            started, cpu_started = time.perf_counter(), time.process_time()
            program(file)
            if repetition:
                found[name].append((time.perf_counter() - started, time.process_time() - cpu_started))
    return found


def _tfaccel(file: Path) -> object:
    return read_tabular_set(file, TableOptions(target=_TARGET), classification=False)


def _pandas(file: Path) -> object:
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder, StandardScaler

    table = pd.read_csv(file, parse_dates=[_DAY]) if file.suffix == ".csv" else pd.read_parquet(file)
    days = pd.to_datetime(table.pop(_DAY)).dt
    for part in ("year", "month", "day", "day_of_week"):
        table[part] = getattr(days, part)
    for name, turn in (("season", days.day_of_year / 365.25), ("time", (60 * days.hour + days.minute) / 1440)):
        table[f"{name}, sine"], table[f"{name}, cosine"] = np.sin(2 * np.pi * turn), np.cos(2 * np.pi * turn)
    target = table.pop(_TARGET).to_numpy(np.float32)
    categories = list(_CATEGORIES)
    numbers = [name for name in table.columns if name not in _CATEGORIES]
    steps = [
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ("categories", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), categories),
    ]
    transformer = ColumnTransformer(steps)
    train, test, *targets = train_test_split(table, target, test_size=0.2, random_state=0)
    return transformer.fit_transform(train).astype(np.float32), transformer.transform(test).astype(np.float32), targets
