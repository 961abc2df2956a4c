"""Series: the pendulum keeps its energy, files are read or refused, seasons are found, windows do not leak."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tfaccel.data import BadData
from tfaccel.data.series_set import (
    GRAVITY,
    derivative,
    double_pendulum,
    pendulum_series,
    read_series,
    season_length,
    seasonal_naive,
)
from tfaccel.errors import DataError


def energy(state):
    """Energy of a state in joules, which is conserved without friction; 0 when hanging at rest."""
    angle_1, angle_2, velocity_1, velocity_2 = state.tolist()
    coupling = velocity_1 * velocity_2 * np.cos(angle_1 - angle_2)
    kinetic = velocity_1**2 + velocity_2**2 / 2 + coupling
    return float(kinetic + GRAVITY * (3 - 2 * np.cos(angle_1) - np.cos(angle_2)))


def test_pendulum_keeps_its_energy():
    assert energy(np.zeros(4)) == 0
    angles = double_pendulum(60, noise=0.0, sample_seconds=0.001)
    velocities = np.gradient(angles, 0.001, axis=0)
    energies = [energy(np.concatenate(state)) for state in zip(angles[1:-1], velocities[1:-1], strict=True)]
    assert np.ptp(energies) < 1e-3 * energies[0]
    assert energies[0] == pytest.approx(energy(np.array([1.5, 0.0, 0.0, 0.0])), rel=1e-3)


def test_pendulum_hangs_still_and_swings_like_its_modes():
    assert np.abs(double_pendulum(50, angles=(0.0, 0.0), noise=0.0)).max() == 0
    # Small swings: theta_2 = sqrt(2) theta_1 swings in step, with omega² = (2 - sqrt(2)) g.
    slow = double_pendulum(200, angles=(0.001, 0.001 * np.sqrt(2)), noise=0.0, sample_seconds=0.02)
    times = 0.02 * np.arange(200)
    assert slow[:, 0] == pytest.approx(0.001 * np.cos(np.sqrt((2 - np.sqrt(2)) * 9.81) * times), abs=1e-6)
    assert derivative(np.array([0.0, 0.0, 1.0, -1.0])).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_pendulum_is_the_same_at_every_call_and_measured_with_noise():
    assert np.array_equal(double_pendulum(30), double_pendulum(30))
    noise = double_pendulum(500) - double_pendulum(500, noise=0.0)
    assert noise.std() == pytest.approx(0.01, rel=0.1)
    assert np.abs(pendulum_series().values).max() < np.pi  # No rod goes over the top.


# ---------- Files


def write(path, columns, num_rows=40):
    lines = [",".join(str(value(row)) for value in columns.values()) for row in range(num_rows)]
    path.write_text("\n".join([",".join(columns), *lines]))
    return path


def day(row):
    return f"2024-01-{1 + row // 24:02}T{row % 24:02}:00"


def test_files_are_read(tmp_path):
    columns = {"when": day, "sales": lambda row: "" if row == 5 else row, "shop": lambda row: "north", "rain": float}
    series = read_series(write(tmp_path / "s.csv", columns), time_column="when", target="rain, sales")
    assert (series.names, series.target_names, series.num_train) == (("sales", "rain"), ("rain", "sales"), 32)
    assert series.values[:, 0].tolist() == list(range(40))  # Row 5 lies on the line between its neighbours.
    assert series.report == {"num_imputed": {"sales": 1}, "num_gaps": 0, "ignored": ["shop"]}
    assert series.to_json()["num_test"] == 8
    assert series.times[[0, 25]].astype(str).tolist() == ["2024-01-01T00:00:00.000", "2024-01-02T01:00:00.000"]


def test_first_column_of_pandas_is_the_time(tmp_path):
    rows = "\n".join(f"2024-01-{day:02},{day}" for day in range(1, 31))
    (tmp_path / "s.csv").write_text(f",sales\n{rows}\n")
    assert read_series(tmp_path / "s.csv", time_column="column_1").names == ("sales",)
    with pytest.raises(DataError, match="Columns: column_1, sales"):
        read_series(tmp_path / "s.csv", time_column=None)


def test_one_row_is_read_without_a_warning(tmp_path):
    (tmp_path / "s.csv").write_text("day,sales\n2024-01-01,3\n")
    series = read_series(tmp_path / "s.csv", time_column="day")
    with pytest.raises(DataError, match="has 1 rows to train on and 0 to test with"):
        series.num_windows(64, 24)


def test_gaps_are_counted(tmp_path):
    columns = {"t": lambda row: row + (10 if row > 20 else 0), "x": float}
    series = read_series(write(tmp_path / "s.csv", columns), time_column="t")
    assert series.report["num_gaps"] == 1
    assert series.times[20:22].tolist() == [20.0, 31.0]


def test_gaps_are_not_filled_from_a_later_part(tmp_path):
    columns = {"t": int, "x": lambda row: "" if 25 <= row < 35 else row if row < 35 else 1000}
    series = read_series(write(tmp_path / "s.csv", columns), time_column="t")
    assert (series.num_fitted, series.num_train) == (29, 32)
    assert series.values[25:32, 0].tolist() == [24] * 7
    assert series.values[32:36, 0].tolist() == [268, 512, 756, 1000]  # From the last known value to the next one.
    columns["x"] = lambda row: "" if row == 28 else row if row < 29 else 1000
    series = read_series(write(tmp_path / "s.csv", columns), time_column="t")
    assert series.values[27:30, 0].tolist() == [27, 27, 1000]  # Calibration is later than what models are fitted to.
    columns["x"] = lambda row: "" if row < 30 else row
    with pytest.raises(DataError, match=r"Column 'x' of .* holds no number in its first 29 rows, to train on\."):
        read_series(write(tmp_path / "s.csv", columns), time_column="t")


def test_daylight_saving_ends_in_order(tmp_path):
    zone, start = ZoneInfo("Europe/Berlin"), datetime(2024, 10, 26, 20, tzinfo=UTC)
    columns = {"t": lambda row: (start + timedelta(hours=row)).astimezone(zone).isoformat(), "x": float}
    for bad in (None, BadData("skip")):
        series = read_series(write(tmp_path / "s.csv", columns), time_column="t", bad_data=bad)
        assert series.report["num_gaps"] == 0
        assert series.values[:, 0].tolist() == list(range(40))
        assert set(np.diff(series.times).astype("timedelta64[m]").astype(int)) == {60}
        assert str(series.times[0]) == "2024-10-26T20:00:00.000"
    columns["t"] = lambda row: (
        f"2024-06-01T{row % 24:02}:00+02:00" if row < 24 else f"2024-06-02T{row % 24:02}:00+02:00"
    )
    series = read_series(write(tmp_path / "s.csv", columns), time_column="t")
    assert str(series.times[0]) == "2024-06-01T00:00:00.000"  # One offset: local time.
    columns["t"] = lambda row: f"2024-06-{1 + row // 24:02}T{row % 24:02}:00" + ("Z" if row == 7 else "")
    with pytest.raises(DataError, match=r"has '2024-06-01T07:00Z' in row 8 .* Either all times must have an offset"):
        read_series(write(tmp_path / "s.csv", columns), time_column="t")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"t": int, "x": float}, {"time_column": None}, "Say which column of {path} holds the times: time_column=NAME"),
        ({"t": int, "x": float}, {"time_column": "time"}, "{path} has no column 'time'. Columns: t, x."),
        ({"t": int, "x": float}, {"target": "y"}, "{path} has no column 'y'."),
        ({"t": lambda row: -row, "x": float}, {}, "but row 2 below the header has '-1' after '0'. Sort"),
        ({"t": lambda row: "May 5", "x": float}, {}, "must hold times, but row 1 below the header has 'May 5'."),
        ({"t": lambda row: "" if row else 1, "x": float}, {}, "must hold times, but row 2 below the header has None."),
        (
            {"t": lambda row: "inf" if row == 39 else row, "x": float},
            {},
            "finite numbers or dates, not both, but row 40",
        ),
        (
            {"t": lambda row: "-inf" if row == 0 else row, "x": float},
            {},
            "not both, but row 1 below the header has '-inf'",
        ),
        (
            {"t": lambda row: row if row < 9 else f"2024-05-{row - 8:02}", "x": int},
            {},
            "has '2024-05-01', and the first",
        ),
        (
            {"t": lambda row: 17 * 10**17 + 100 * row, "x": int},
            {},
            "has '1700000000000000100' in row 2 below the header after '1700000000000000000', which are one number in",
        ),
        ({"t": int, "x": lambda row: "a" if row == 7 else row}, {}, "Column 'x' of {path} holds numbers, but row 8"),
        ({"t": int, "x": lambda row: 17 * 10**11 + row}, {}, "are around 1.7e+12 and vary by 11.5: float32, in which"),
        (
            {"t": int, "x": int, "y": lambda row: f"{row} %"},
            {},
            "Column 'y' of {path} holds numbers such as '0 %'. Write",
        ),
        ({"t": int, "x": lambda row: "ab"[row % 2]}, {}, "{path} has no column of numbers beside 't'."),
        ({"t": int, "x": lambda row: "", "y": int}, {"target": "x"}, "Column 'x' of {path} holds no number."),
    ],
)
def test_bad_files_are_refused(tmp_path, columns, options, message):
    path = write(tmp_path / "s.csv", columns)
    with pytest.raises(DataError, match=re.escape(message.format(path=path))):
        read_series(path, **{"time_column": "t", **options})


def test_series_shorter_than_a_window_are_refused(tmp_path):
    series = read_series(write(tmp_path / "s.csv", {"t": int, "x": float}), time_column="t")
    with pytest.raises(DataError, match=r"has 29 rows to train on and 8 to test with; a window of 64 and"):
        series.num_windows(64, 24)
    assert series.num_windows(20, 8) == 2
    with pytest.raises(DataError):
        series.num_windows(20, 9)


# ---------- Seasons


def test_seasons_are_found():
    generator = np.random.default_rng(0)
    times = np.arange(300)
    wave = np.sin(2 * np.pi * times / 24) + 0.1 * generator.standard_normal(300)
    assert season_length(wave[:, np.newaxis]) % 24 == 0
    two = np.stack([np.sin(2 * np.pi * times / 30), np.full(300, 7.0)], axis=1)
    assert season_length(two) % 30 == 0
    assert season_length(times[:, np.newaxis].astype(float)) == 1
    assert season_length(np.ones((50, 1))) == 1


def test_seasonal_naive_uses_the_past_alone():
    values = np.arange(100.0)[:, np.newaxis]
    forecasts = seasonal_naive(values, np.array([50, 60]), horizon=12, season=5)
    assert forecasts.shape == (2, 12, 1)
    assert forecasts.max(axis=(1, 2)).tolist() == [49, 59]
    assert forecasts[0, :6, 0].tolist() == [45, 46, 47, 48, 49, 45]


# ---------- Batches


def test_windows_are_cut_rightly_and_do_not_leak(logical_devices, tmp_path):
    from tfaccel.data.series_data import series_batches

    columns = {"t": int, "x": float, "y": lambda row: 1000 + row}
    series = read_series(write(tmp_path / "s.csv", columns, 100), time_column="t", target="y")
    batches = series_batches(series, window=6, horizon=4)
    assert series.num_windows(6, 4) == 63
    past, future = (
        np.concatenate(part) for part in zip(*batches.train(8, seed=0, epoch=0).as_numpy_iterator(), strict=True)
    )
    assert (past.shape, future.shape) == ((56, 6, 2), (56, 4, 1, 1))
    assert (future[:, 0, 0, 0] == past[:, -1, 1] + 1).all()
    assert future.max() < 1072  # The last tenth of the training part, which ends at 1080, is for calibration.
    assert len(np.unique(past[:, 0, 0])) == 56
    assert series.first_rows("calibration", window=6, horizon=4).tolist() == [72, 73, 74, 75, 76]
    tested = list(batches.test(3).as_numpy_iterator())
    assert [len(past) for past, _ in tested] == [3, 2]
    assert np.concatenate([future for _, future in tested]).ravel().tolist() == list(range(1080, 1100))


def test_order_follows_from_seed_and_epoch(logical_devices):
    from tfaccel.data.series_data import series_batches

    batches = series_batches(pendulum_series(), window=16, horizon=4)

    def first(seed, epoch):
        return next(batches.train(8, seed=seed, epoch=epoch).as_numpy_iterator())[0]

    assert np.array_equal(first(0, 0), first(0, 0))
    assert not np.array_equal(first(0, 0), first(0, 1))
    assert not np.array_equal(first(0, 0), first(1, 0))
    with pytest.raises(DataError, match=r"A batch takes 4096 windows, but there are 2861 to train on\."):
        batches.train(4096, seed=0, epoch=0)
