"""`SeriesSet`: a time series, split chronologically; its season; and a double pendulum, a series without one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, field
from datetime import datetime
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.tables.column_kinds import (
    NUMBERS_ADVICE,
    NUMERIC,
    as_numbers,
    check_float32,
    get_kind,
    kinds_of_columns,
    unread_notation,
    without_bad_values,
)
from tfaccel.data.tables.files import read_table
from tfaccel.data.tables.table import Column, Table, merged_integers
from tfaccel.errors import DataError
from tfaccel.short_repr import noun

logger = logging.getLogger("tfaccel")

TEST_PART = 0.2
CALIBRATION_PART = 0.1  # the end of the training part
_NUM_PENDULUM_SAMPLES = 4000
_PENDULUM_SECONDS = 0.05
_UNEVEN = 1.5  # a step of more times the median is a gap

GRAVITY = 9.81  # m/s²
_STEPS_BETWEEN = 10  # integration steps between two samples

_MIN_SEASON = 2
_MAX_FRACTION = 1 / 3  # of the series


@noun
class SeriesSet:
    """A time series.

    Args:
        source: where it is from.
        names: the column names; the model sees all columns.
        targets: indices of the columns to forecast.
        values: float32, of shape (num_times, num_columns).
        num_train: rows of the training part; the later rows are for testing. The last tenth of the training part is
            held out to calibrate prediction intervals.
        report: {"num_imputed": column -> number of imputed values, "num_gaps": steps longer than usual,
            "ignored": columns without numbers}.
        times: the time of each row, dates (datetime64) or numbers, of shape (num_times,); None if unknown.
    """

    source: str
    names: tuple[str, ...]
    targets: tuple[int, ...]
    values: np.ndarray
    num_train: int
    report: Mapping[str, Any] = field(default_factory=dict, hash=False)
    times: np.ndarray | None = field(default=None, hash=False)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the columns that are forecast."""
        return tuple(self.names[number] for number in self.targets)

    @property
    def num_fitted(self) -> int:
        """Rows that models are fitted to."""
        return self.num_train - round(CALIBRATION_PART * self.num_train)

    def means_and_deviations(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each column in the training part; a deviation of 0 becomes 1."""
        values = self.values[: self.num_train].astype(np.float64)
        return values.mean(axis=0).tolist(), [deviation or 1.0 for deviation in values.std(axis=0).tolist()]

    def num_windows(self, window: int, horizon: int) -> int:
        """Number of training windows, whose forecasts end among the rows that models are fitted to.

        Raises:
            DataError: if the parts are too short for window and horizon.
        """
        num_test = len(self.values) - self.num_train
        if self.num_fitted < window + horizon + 1 or num_test < horizon:
            raise DataError(
                f"{self.source} has {self.num_fitted} rows to train on and {num_test} to test with; a window of "
                f"{window} and a horizon of {horizon} need {window + horizon + 1} and {horizon}. Make them shorter."
            )
        return self.num_fitted - window - horizon + 1

    def first_rows(self, part: str, *, window: int, horizon: int) -> np.ndarray:
        """The first forecast row of each window of a part, in chronological order.

        Args:
            part: "test", whose forecasts are contiguous; or "calibration": the end of the training part, which models
                are not fitted to.
            window, horizon: rows of the past, and of the forecast, which lies within the part.
        """
        if part == "calibration":
            return np.arange(self.num_fitted, self.num_train - horizon + 1)
        return np.arange(max(self.num_train, window), len(self.values) - horizon + 1, horizon)

    def to_json(self) -> dict[str, Any]:
        """The model's inputs and outputs as JSON-serializable data."""
        about = asdict(self)
        del about["values"], about["times"]
        return {**about, "target_names": self.target_names, "num_test": len(self.values) - self.num_train}


def pendulum_series() -> SeriesSet:
    """Both angles of a double pendulum, 4,000 samples of 0.05 s, measured with an error of 0.01 rad.

    Example:
        >>> pendulum_series().values.shape
        (4000, 2)
    """
    values = double_pendulum(_NUM_PENDULUM_SAMPLES, sample_seconds=_PENDULUM_SECONDS).astype(np.float32)
    num_train = round((1 - TEST_PART) * len(values))
    return SeriesSet(
        source="a double pendulum",
        names=("upper angle", "lower angle"),
        targets=(0, 1),
        values=values,
        num_train=num_train,
    )


def read_series(
    path: str | os.PathLike[str],
    *,
    time_column: str | None,
    target: str | None = None,
    encoding: str = "utf-8",
    bad_data: BadData | None = None,
) -> SeriesSet:
    """The series in a CSV or Parquet file, with a row for each time; the last fifth of the rows is for testing.

    Missing values are linearly interpolated; at the end of the training part, where later values must stay unknown, the
    last value is repeated. Columns without numbers are ignored.

    Args:
        path: the file.
        time_column: the column with the times: numbers, or ISO 8601 dates. With offsets from UTC, the hour that the end
            of daylight saving repeats is in order.
        target: the column to forecast, or several separated by commas; None for all.
        encoding: of a CSV file.
        bad_data: what to do with damaged rows, including those with a damaged time; what is left out is a gap.

    Raises:
        DataError: if the file cannot be read, a column is missing, a time is invalid or not later than the one before
            (the row is named), or there are no numbers to forecast.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "s.csv")
        ...     _ = file.write_text("day,sales\\n" + "\\n".join(f"2024-01-{day:02},{day}" for day in range(1, 31)))
        ...     read_series(file, time_column="day").num_train
        24
    """
    bad_data = bad_data or BadData()
    table = read_table(path, encoding=encoding, bad_data=bad_data)
    if time_column is None:
        raise DataError(
            f"Say which column of {table.source} holds the times: time_column=NAME (--time_column=NAME). "
            f"Columns: {', '.join(table.names)}."
        )
    wanted = [name.strip() for name in target.split(",")] if target else []
    for name in wanted:
        table.column(name)
    if bad_data.skips:
        kinds = kinds_of_columns(table, {})
        kinds |= dict.fromkeys(wanted, NUMERIC) | {time_column: ""}
        table = without_bad_values(table, kinds, bad_data)
        table = _with_times(table, time_column, bad_data)
    bad_data.finish(table.num_rows, "rows")
    times, seconds = _times(table.column(time_column), table.source)
    steps = np.diff(seconds)
    used: list[Column] = []
    ignored: list[Column] = []
    for column in table.columns:
        if column.name != time_column:
            is_number = column.name in wanted or (get_kind(column) == NUMERIC and not column.missing.all())
            (used if is_number else ignored).append(column)
    wrong = next((column for column in ignored if unread_notation(column).startswith("numbers")), None)
    if wrong is not None:
        notation = unread_notation(wrong)
        raise DataError(
            f"Column {wrong.name!r} of {table.source} holds {notation}. {NUMBERS_ADVICE}, or remove the column."
        )
    if not used:
        raise DataError(f"{table.source} has no column of numbers beside {time_column!r}.")
    numbers = {column.name: as_numbers(column, table.source, advice="") for column in used}
    names = tuple(numbers)
    report = {
        "num_imputed": {name: int(np.isnan(n).sum()) for name, n in numbers.items() if np.isnan(n).any()},
        "num_gaps": int(np.sum(steps > _UNEVEN * np.median(steps))) if len(steps) else 0,
        "ignored": [column.name for column in ignored],
    }
    num_train = round((1 - TEST_PART) * table.num_rows)
    ends = (num_train - round(CALIBRATION_PART * num_train), num_train, table.num_rows)
    for name, n in numbers.items():
        num_merged = check_float32(n, name, table.source)
        if num_merged:
            logger.warning(f"{num_merged} distinct values of column {name!r} of {table.source} are merged by float32.")
    filled = np.stack([_filled(name, n, table, ends) for name, n in numbers.items()], axis=1)
    return SeriesSet(
        source=table.source,
        names=names,
        values=filled.astype(np.float32),
        report=report,
        times=times,
        targets=tuple(names.index(name) for name in wanted) or tuple(range(len(names))),
        num_train=num_train,
    )


def _times(column: Column, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Strictly increasing times: as dates if they are dates, and as numbers (seconds for dates).

    Dates with one offset from UTC are returned as local time, dates with several, as of daylight saving, in UTC.
    """
    texts = column.texts().tolist()
    seconds, offsets = np.zeros(len(texts)), []
    for row, text in enumerate(texts):
        try:
            seconds[row] = float("" if "_" in text else text)
        except (TypeError, ValueError):
            seconds[row], offset = _date(text, row + 1, column.name, source)
            offsets.append(offset)
            if (offset is None) != (offsets[0] is None):
                raise DataError(
                    f"Column {column.name!r} of {source} has {text!r} in row {row + 1} below the header. Either all "
                    "times must have an offset from UTC, or none."
                ) from None
        if not np.isfinite(seconds[row]) or len(offsets) not in (0, row + 1):
            raise DataError(
                f"Column {column.name!r} of {source} must hold finite numbers or dates, not both, but row {row + 1} "
                f"below the header has {text!r}, and the first one {texts[0]!r}. Fix the row."
            )
        if row and not offsets and merged_integers([texts[row - 1], text]) is not None:
            raise DataError(
                f"Column {column.name!r} of {source} has {text!r} in row {row + 1} below the header after "
                f"{texts[row - 1]!r}, which are one number in float64. Subtract a constant from the column."
            )
        if row and not seconds[row] > seconds[row - 1]:
            raise DataError(
                f"Column {column.name!r} of {source} must rise from row to row, but row {row + 1} below the header has "
                f"{text!r} after {texts[row - 1]!r}. Sort the rows, and keep one of each time."
            )
    if not offsets:
        return seconds, seconds
    local = offsets[0] if offsets[0] is not None and len(set(offsets)) == 1 else 0.0
    return ((seconds + local) * 1000).astype("datetime64[ms]"), seconds


def _with_times(table: Table, time_column: str, bad_data: BadData) -> Table:
    """The rows whose time can be read, and is later than that of the row before."""
    kept: list[int] = []
    last = -np.inf
    column = table.column(time_column)
    for row in range(table.num_rows):
        place = table.place(row)
        try:
            _, seconds = _times(Column(column.name, column.values[[row]]), table.source)
            if not seconds[0] > last:
                raise DataError(f"it has {column.values[row]!r} after a later or equal one. Times must rise.")
        except DataError as error:
            where = f"{table.source}, line {place}: column {time_column!r}:"
            bad_data.found(DataError(f"{where} {error}"), table.source, place)
        else:
            kept.append(row)
            last = float(seconds[0])
    return table.rows(np.array(kept, np.int64))


def _date(text: str | None, row: int, name: str, source: str) -> tuple[float, float | None]:
    """The seconds of a date since 1970, in UTC if it says its offset; and this offset in seconds."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError as error:
        raise DataError(
            f"Column {name!r} of {source} must hold times, but row {row} below the header has {text!r}. "
            "Write numbers, or dates such as 2024-05-31 or 2024-05-31T14:00."
        ) from error
    offset = moment.utcoffset()
    seconds = (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    return (seconds, None) if offset is None else (seconds - offset.total_seconds(), offset.total_seconds())


def _filled(name: str, numbers: np.ndarray, table: Table, ends: tuple[int, ...]) -> np.ndarray:
    """The numbers with gaps interpolated; no part, given by the row after its last, is filled from a later part."""
    known = ~np.isnan(numbers)
    if not known.any():
        raise DataError(f"Column {name!r} of {table.source} holds no number.")
    if not known[: ends[0]].any():
        raise DataError(f"Column {name!r} of {table.source} holds no number in its first {ends[0]} rows, to train on.")
    filled = numbers.copy()
    for end in ends:
        known = ~np.isnan(filled[:end])
        filled[:end] = np.interp(np.arange(end), np.flatnonzero(known), filled[:end][known])
    return filled


def double_pendulum(
    num_samples: int,
    *,
    sample_seconds: float = 0.05,
    angles: tuple[float, float] = (1.5, 0.0),
    noise: float = 0.01,
) -> np.ndarray:
    r"""Angles of two rods of 1 m with masses of 1 kg at their ends, the second hanging from the first.

    With $\delta = \theta_1 - \theta_2$ and unit lengths and masses,

    $$\ddot\theta_1 = \frac{-3 g \sin\theta_1 - g \sin(\theta_1 - 2\theta_2) - 2 \sin\delta
    (\dot\theta_2^2 + \dot\theta_1^2 \cos\delta)}{3 - \cos 2\delta}, \quad
    \ddot\theta_2 = \frac{2 \sin\delta (2 \dot\theta_1^2 + 2 g \cos\theta_1 + \dot\theta_2^2 \cos\delta)}
    {3 - \cos 2\delta}$$

    integrated from rest with the fourth-order Runge-Kutta method.

    Args:
        num_samples: number of samples.
        sample_seconds: time between two samples.
        angles: initial angles, in radians from hanging down.
        noise: standard deviation of the measurement error, in radians, which is the same at every call.

    Returns:
        Both angles in radians, of shape (num_samples, 2), float64.

    Example:
        >>> double_pendulum(3, noise=0.0).round(3).tolist()
        [[1.5, 0.0], [1.488, 0.001], [1.451, 0.005]]
    """
    state = np.array([*angles, 0.0, 0.0])
    samples = np.empty((num_samples, 2))
    step = sample_seconds / _STEPS_BETWEEN
    for number in range(num_samples):
        samples[number] = state[:2]
        for _ in range(_STEPS_BETWEEN):
            k1 = derivative(state)
            k2 = derivative(state + step / 2 * k1)
            k3 = derivative(state + step / 2 * k2)
            k4 = derivative(state + step * k3)
            state = state + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return samples + noise * np.random.default_rng(0).standard_normal(samples.shape)


def derivative(state: np.ndarray) -> np.ndarray:
    """The time derivative of a state (both angles, then both velocities), in radians and seconds."""
    angle_1, angle_2, velocity_1, velocity_2 = state.tolist()
    sin, cos = np.sin(angle_1 - angle_2), np.cos(angle_1 - angle_2)
    below = 3 - np.cos(2 * (angle_1 - angle_2))
    first = -3 * GRAVITY * np.sin(angle_1) - GRAVITY * np.sin(angle_1 - 2 * angle_2)
    first -= 2 * sin * (velocity_2**2 + velocity_1**2 * cos)
    second = 2 * sin * (2 * velocity_1**2 + 2 * GRAVITY * np.cos(angle_1) + velocity_2**2 * cos)
    return np.array([velocity_1, velocity_2, first / below, second / below])


def season_length(values: np.ndarray) -> int:
    """The season length of a series: the lag of the highest peak of its autocorrelation.

    Args:
        values: of shape (num_times, num_columns); the columns' autocorrelations are averaged.

    Returns:
        At least 1, which means no season: the naive forecast then repeats the last value.

    Example:
        >>> season_length(np.sin(2 * np.pi * np.arange(120) / 12)[:, np.newaxis])
        12
    """
    longest = int(len(values) * _MAX_FRACTION)
    centred = (values - values.mean(axis=0)).astype(np.float64)
    deviations = centred.std(axis=0)
    centred = centred[:, deviations > 0] / deviations[deviations > 0]
    if longest <= _MIN_SEASON or centred.shape[1] == 0:
        return 1
    correlations = np.array([np.mean(centred[:-lag] * centred[lag:]) for lag in range(1, longest + 1)])
    is_peak = (correlations[1:-1] > correlations[:-2]) & (correlations[1:-1] >= correlations[2:])
    peaks = np.flatnonzero(is_peak) + 1  # the first lag is 1
    peaks = peaks[correlations[peaks] > 0]
    return int(peaks[np.argmax(correlations[peaks])]) + 1 if len(peaks) else 1


def seasonal_naive(values: np.ndarray, starts: np.ndarray, *, horizon: int, season: int) -> np.ndarray:
    """Forecasts that repeat the last whole season before each start.

    Args:
        values: the series, of shape (num_times, num_columns).
        starts: the first time step of each forecast.
        horizon: number of time steps to forecast.
        season: season length; no start may be smaller.

    Returns:
        Of shape (num_starts, horizon, num_columns).

    Source: Hyndman and Athanasopoulos, Forecasting: principles and practice, 2021, section 5.2.

    Example:
        >>> seasonal_naive(np.arange(6.0)[:, np.newaxis], np.array([5]), horizon=3, season=2)[0, :, 0].tolist()
        [3.0, 4.0, 3.0]
    """
    ahead = np.arange(horizon)
    return np.asarray(values[starts[:, np.newaxis] - season + ahead % season])
