"""Sequence forecasting: quantiles of what comes next, by a GRU or temporal convolutions, beside simple regression.

References:
    Cho et al., Learning phrase representations using RNN encoder-decoder, 2014, https://arxiv.org/abs/1406.1078 (GRU)
    Bai et al., An empirical evaluation of generic convolutional and recurrent networks for sequence modeling, 2018,
        https://arxiv.org/abs/1803.01271 (temporal convolutions)
    Wen et al., A multi-horizon quantile recurrent forecaster, 2017, https://arxiv.org/abs/1711.11053 (quantiles)
    Romano et al., Conformalized quantile regression, 2019, https://arxiv.org/abs/1905.03222 (the width of intervals)
    Hyndman and Athanasopoulos, Forecasting: principles and practice, 2021, https://otexts.com/fpp3 (the baseline)

Command:
    tfaccel train --recipe=sequence_forecasting --run_dir=runs/pendulum
    tfaccel train --recipe=sequence_forecasting --run_dir=runs/pendulum_gru --model=gru
    tfaccel train --recipe=sequence_forecasting --run_dir=runs/mine --data_dir=sales.csv --time_column=day

    The file is CSV or Parquet (`pip install 'tfaccel[data]'`) with a row for each time; the model sees all numbers.

Expected result:
    On the double pendulum (4,000 samples of 0.05 s, the last 800 for testing; 24 steps ahead): a mean absolute error of
    0.138 rad with convolutions and 0.141 rad with the GRU, medians of seeds 0 to 4 (0.138, 0.145, 0.142, 0.129, 0.131
    and 0.140, 0.141, 0.140, 0.149, 0.144). Ridge regression on the same window has 0.159, three nearest neighbours
    0.169, repeating the last season 0.345. The 80 % intervals hold 88 % and 85 %. It takes 21 s and 16 s of processor
    time on two cores of an AMD EPYC with AVX512_BF16, in mixed_bfloat16. On the last fifth of the training part no half
    or double of epochs, rate or width gains more than its spread (`tfaccel benchmark settings`, two seeds, no GRU).
"""

import functools
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfaccel.data.data_place import data_place
from tfaccel.data.seasons import season_length, seasonal_naive
from tfaccel.data.series_augmentation import series_augmentation
from tfaccel.data.series_set import SeriesSet, pendulum_series, read_series
from tfaccel.data.train_data import train_data_of
from tfaccel.models.past_readers import MODELS, WIDTH, forecaster_cost, read_past
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions
from tfaccel.planning.workload import Workload
from tfaccel.training.baseline_scores import BaselineScores
from tfaccel.training.files import write_json
from tfaccel.training.result import TrainResult
from tfaccel.training.run_recipe import run_recipe
from tfaccel.training.training_options import TrainingOptions

if TYPE_CHECKING:
    import keras

EPOCHS = 10
GLOBAL_BATCH_SIZE = 64
WINDOW, HORIZON = 64, 24  # rows of the past that the model sees, and rows that it forecasts
LEARNING_RATE_PART = 0.4  # of what suits the optimizer on images
DROPOUT = 0.0


# ---------- The workload. TensorFlow is imported inside its functions only, after the runtime has been set up.


@dataclass(frozen=True, kw_only=True)
class SeriesWorkload(Workload):
    """A workload with test windows for certain, and the series that they are cut from."""

    series: SeriesSet
    window: int
    horizon: int
    validation_data: Callable[[int], Any]


def workload(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    time_column: str | None = None,
    target: str | None = None,
    encoding: str = "utf-8",
    model: Literal["gru", "convolution"] = "convolution",
    window: int = WINDOW,
    horizon: int = HORIZON,
    width: int = WIDTH,
    dropout: float = DROPOUT,
    augmentation: Literal["none", "jitter"] = "none",
    remat: bool = False,
    **training_options: Any,
) -> SeriesWorkload:
    """What this recipe trains. The series is read and checked here.

    Args:
        data_dir: a CSV or Parquet file with a row for each time; None for a double pendulum.
        time_column: the column of the file with the times: numbers or dates, each later than the one before.
        target: the column that is forecast, or several with commas between; None for all.
        encoding: of a CSV file.
        model: how the past is read: by a gated recurrent unit or by temporal convolutions.
        window: rows of the past that the model sees.
        horizon: rows that it forecasts.
        width: numbers that describe the past at each step.
        dropout: part of the hidden values that is left out in each step, from 0 to below 1.
        augmentation: none, or random jitter and scale of the past (jitter); see `tfaccel.data.series_augmentation`.
        remat: calculate the inside of each convolution block again in the backward pass: less memory, more time.
        **training_options: optimizer, learning_rate, schedule, early_stopping and more; see
            `tfaccel.training.training_options.TrainingOptions`.

    Raises:
        DataError: if the series cannot be used; the message names the column, and the row where there is one.
        WorkloadError: if another argument cannot be used.

    Example:
        >>> workload().num_train_examples
        2793
    """
    options = TrainingOptions.of(training_options)
    counts = {"window": window, "horizon": horizon, "width": width}
    check_counts(**counts)
    check_fractions(dropout=dropout)
    check_choice("model", model, MODELS)
    changed = series_augmentation(augmentation)
    if options.learning_rate is None:
        options = replace(options, learning_rate=LEARNING_RATE_PART * options.peak_learning_rate)
    if data_dir is None:
        series = pendulum_series()
    else:
        series = read_series(data_dir, time_column=time_column, target=target, encoding=encoding)
    num_windows = series.num_windows(window, horizon)
    costs = forecaster_cost(series, model, (window, horizon), width=width)

    @functools.cache
    def batches() -> Any:
        from tfaccel.data.series_batches import SeriesBatches

        return SeriesBatches(series, window=window, horizon=horizon, augmentation=changed)

    return SeriesWorkload(
        name="sequence_forecasting",
        build_model=lambda: forecaster(series, model, (window, horizon), width=width, dropout=dropout, remat=remat),
        compile_args=lambda num_steps: compile_args(options, series, num_steps=num_steps),
        train_data=train_data_of(batches),
        validation_data=lambda batch_size: batches().test(batch_size),
        callbacks=options.callbacks,
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
        num_train_examples=num_windows,
        flops_per_example=costs.flops_per_example,
        num_parameters=costs.num_parameters,
        options={
            **asdict(options), "data_dir": data_place(data_dir), "time_column": time_column,
            "target": target, "encoding": encoding, "model": model, **counts,
            "dropout": dropout, "augmentation": augmentation, "remat": remat,
        },
        series=series,
        window=window,
        horizon=horizon,
    )  # fmt: skip


# ---------- The model: reads the past, and gives three quantiles for each time ahead


def forecaster(
    series: SeriesSet,
    model: str,
    window_and_horizon: tuple[int, int],
    *,
    width: int = WIDTH,
    dropout: float,
    remat: bool,
) -> "keras.Model":
    """The model: raw values of the past in, quantiles of the future, of shape (horizon, num_targets, 3), out.

    Example:
        >>> forecaster(pendulum_series(), "gru", (64, 24), dropout=0.0, remat=False).output.shape
        (None, 24, 2, 3)
    """
    import keras
    from keras import layers, ops

    from tfaccel.models.quantile_loss import QUANTILES

    window, horizon = window_and_horizon
    num_targets = len(series.targets)
    means, deviations = series.means_and_deviations()
    inputs = keras.Input((window, len(series.names)), name="past", dtype="float32")
    scaled = layers.Normalization(mean=means, variance=[d**2 for d in deviations], dtype="float32")(inputs)
    x = read_past(scaled, model, width=width, dropout=dropout, remat=remat)
    x = layers.Dropout(dropout)(layers.Dense(2 * width, activation="silu")(x))
    # What comes out stays float32 under mixed precision. It starts at the last value, and quantiles cannot cross.
    steps = layers.Dense(horizon * num_targets * len(QUANTILES), dtype="float32", kernel_initializer="zeros")(x)
    steps = layers.Reshape((horizon, num_targets, len(QUANTILES)), dtype="float32")(steps)
    # The smaller one comes first: behind the larger, Keras takes it for a bias where it has as many rows as times.
    middle = ops.expand_dims(ops.take(scaled[:, -1], list(series.targets), axis=-1), 1) + steps[..., 1]
    low, high = middle - ops.softplus(steps[..., 0] - 2), middle + ops.softplus(steps[..., 2] - 2)
    quantiles = ops.stack([low, middle, high], axis=-1)
    scales = np.array([deviations[number] for number in series.targets], np.float32)[:, np.newaxis]
    offsets = np.array([means[number] for number in series.targets], np.float32)[:, np.newaxis]
    return keras.Model(inputs, layers.Rescaling(scales.tolist(), offsets.tolist(), dtype="float32")(quantiles))


# ---------- Loss, metrics and optimizer


def compile_args(options: TrainingOptions, series: SeriesSet, *, num_steps: int) -> dict[str, Any]:
    """What `Model.compile` takes: the quantile loss, in standard deviations of each column."""
    from tfaccel.models.quantile_loss import QuantileLoss, median_absolute_error

    _, deviations = series.means_and_deviations()
    return {
        "optimizer": options.make_optimizer(num_steps=num_steps),
        "loss": QuantileLoss([deviations[number] for number in series.targets]),
        "metrics": [median_absolute_error],
    }


# ---------- The run: trains, and leaves a picture of forecasts with their intervals


def run(*, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
    """Trains, and leaves in `run_dir` what `tfaccel.train` leaves, and what `show_result` writes.

    Options and errors are those of `tfaccel.train` (`plan`, `seed`, `resume`, ...) and of `workload`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run(run_dir=folder, epochs=1, global_batch_size=256, verbose=0)  # doctest: +ELLIPSIS
        33 forecasts of 24 steps
        ...
        >>> sorted(result.final)
        ['loss', 'median_absolute_error']
    """
    return run_recipe(workload, show_result, run_dir=run_dir, **options)


def show_result(work: SeriesWorkload, result: TrainResult) -> BaselineScores:
    """Writes and shows the forecasts of the test part beside nearest neighbours, ridge regression and the last season.

    `predictions.png` shows two of them with their intervals; `comparison.json` has the figures; `series.json` says what
    the columns are, and by which factors intervals are wider than the model's own, found on the last tenth of the
    training part, which the model was not fitted to. `model.predict(past)` forecasts from windows of shape
    (num_windows, window, num_columns).
    """
    import keras

    from tfaccel.data.series_batches import SeriesBatches
    from tfaccel.reporting.comparison_table import comparison_lines
    from tfaccel.reporting.forecast_baselines import regression_forecasts
    from tfaccel.reporting.forecast_picture import Forecast, save_forecast_picture
    from tfaccel.reporting.forecast_scores import baselines_of, forecast_scores
    from tfaccel.reporting.interval_calibration import interval_factors, with_factors
    from tfaccel.reporting.result_table import show_text

    run_dir, series, horizon = Path(result.run_dir), work.series, work.horizon
    batches = SeriesBatches(series, window=work.window, horizon=horizon)
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    columns, starts = list(series.targets), batches.test_starts

    def past_and_future(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = starts[:, np.newaxis]
        future = series.values[rows + np.arange(horizon)][..., columns]
        return series.values[rows + np.arange(-work.window, 0)], future

    def forecast(past: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict(past, verbose=0))

    factors = np.ones((len(columns), 2))
    if len(batches.calibration_starts):
        past, future = past_and_future(batches.calibration_starts)
        factors = interval_factors(future, forecast(past))
    past, future = past_and_future(starts)
    as_trained = forecast(past)
    quantiles = with_factors(as_trained, factors)
    season = season_length(series.values[: series.num_train, columns])
    naive = seasonal_naive(series.values, starts, horizon=horizon, season=season)[..., columns]
    last = np.repeat(past[:, -1:, columns], horizon, axis=1)
    simple = {f"seasonal naive, season {season}": naive, "last value": last}
    fitted = regression_forecasts(series, starts, window=work.window, horizon=horizon)
    scores = forecast_scores(future, quantiles, as_trained, {**fitted, **simple})
    picked = (len(starts) // 3, 2 * len(starts) // 3) if len(starts) > 2 else (0,)
    panels = [
        Forecast(
            f"{name}, from row {starts[row] + 1}",
            past[row, :, columns[number]],
            future[row, :, number],
            quantiles[row, :, number],
            naive[row, :, number],
            None if series.times is None else series.times[starts[row] - work.window : starts[row] + horizon],
        )
        for number, name in enumerate(series.target_names)
        for row in picked
    ]
    legend = {"interval": "80 % interval", "baseline": f"seasonal naive ({season})"}
    save_forecast_picture(run_dir / "predictions.png", panels, num_columns=len(picked), **legend)
    write_json(run_dir / "comparison.json", scores)
    write_json(
        run_dir / "series.json",
        {**series.to_json(), "window": work.window, "horizon": horizon, "interval_factors": factors.tolist()},
    )
    show_text("\n".join([f"{len(starts)} forecasts of {horizon} steps", *comparison_lines(scores)]))
    return baselines_of(scores, simple, num_examples=len(starts))
