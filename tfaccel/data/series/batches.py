"""Batches of windows of a series as `tf.data`, in an order determined by seed and epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfaccel.data.pipeline import Augmentation, Pipeline
from tfaccel.data.series.augmentation import SeriesAugmentation
from tfaccel.data.series.series_set import SeriesSet

if TYPE_CHECKING:
    import tensorflow as tf


class SeriesBatches(Pipeline):
    """Windows of the past and the future after each.

    A batch holds the past, of shape (rows, window, num_columns), and the future, of shape (rows, horizon, num_targets,
    1), both float32.

    Args:
        series: the series.
        window: rows of the past that the model sees.
        horizon: rows that it forecasts.
        augmentation: random augmentation of the past in training; None for none.

    Raises:
        DataError: if the series is too short for window and horizon.

    Example:
        >>> from tfaccel.data.series.series_set import pendulum_series
        >>> batches = SeriesBatches(pendulum_series(), window=64, horizon=24)
        >>> past, future = next(iter(batches.train(32, seed=0, epoch=0)))
        >>> past.shape, future.shape
        (TensorShape([32, 64, 2]), TensorShape([32, 24, 2, 1]))
    """

    def __init__(
        self, series: SeriesSet, *, window: int, horizon: int, augmentation: SeriesAugmentation | None = None
    ) -> None:
        import tensorflow as tf

        self.num_train = series.num_windows(window, horizon)
        self._series = series
        self._window = window
        self._horizon = horizon
        with tf.device("/CPU:0"):
            self._values = tf.constant(series.values)
        changed = None
        if augmentation is not None:
            means, deviations = (np.array(numbers, np.float32) for numbers in series.means_and_deviations())
            changed = Augmentation(
                lambda generator, count: augmentation.numbers(generator, count, len(series.names)),
                lambda pair, numbers: (
                    means + deviations * augmentation.apply((pair[0] - means) / deviations, numbers),
                    pair[1],
                ),
            )
        super().__init__(
            lambda rows: self._windows_at(rows + window),
            num_examples=self.num_train,
            augmentation=changed,
            cache=None,
            noun="windows",
        )

    @property
    def calibration_starts(self) -> np.ndarray:
        """The first forecast row of each window whose forecast is after the fitted rows, in the training part."""
        return np.arange(self._series.num_fitted, self._series.num_train - self._horizon + 1)

    @property
    def test_starts(self) -> np.ndarray:
        """The first forecast row of each test window; the forecasts are contiguous and within the test part."""
        last = len(self._series.values) - self._horizon
        return np.arange(max(self._series.num_train, self._window), last + 1, self._horizon)

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test windows in chronological order; the last batch may be smaller."""
        import tensorflow as tf

        starts = self.test_starts
        pipeline = Pipeline(
            lambda rows: self._windows_at(tf.gather(starts, rows)), num_examples=len(starts), cache=None
        )
        return pipeline.test(global_batch_size)

    def _windows_at(self, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        import tensorflow as tf

        past = tf.gather(self._values, starts[:, tf.newaxis] + tf.range(-self._window, 0, dtype=tf.int64))
        future = tf.gather(self._values, starts[:, tf.newaxis] + tf.range(self._horizon, dtype=tf.int64))
        targets = tf.gather(future, self._series.targets, axis=2)[..., tf.newaxis]
        num_rows = starts.shape[0]
        past = tf.ensure_shape(past, [num_rows, self._window, len(self._series.names)])
        return past, tf.ensure_shape(targets, [num_rows, self._horizon, len(self._series.targets), 1])
