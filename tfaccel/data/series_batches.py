"""Batches of windows of a series as `tf.data`, in an order that follows from seed and epoch."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfaccel.data.series_set import SeriesSet
from tfaccel.errors import DataError

_MOST_PARALLEL_CALLS = 8


class SeriesBatches:
    """Windows of the past, and what came behind them.

    Arguments:
        series: what to cut windows from.
        window: rows of the past that the model sees.
        horizon: rows that it forecasts.

    Raises:
        DataError: if the series is too short for them.

    Example:
        >>> from tfaccel.data.series_set import pendulum_series
        >>> batches = SeriesBatches(pendulum_series(), window=64, horizon=24)
        >>> past, future = next(iter(batches.train(32, seed=0, epoch=0)))
        >>> past.shape, future.shape
        (TensorShape([32, 64, 2]), TensorShape([32, 24, 2, 1]))
    """

    def __init__(self, series: SeriesSet, *, window: int, horizon: int) -> None:
        self.num_train = series.num_windows(window, horizon)
        self._series = series
        self._window = window
        self._horizon = horizon
        with tf.device("/CPU:0"):
            self._values = tf.constant(series.values)
        self._cut = tf.function(self._windows_at, input_signature=[tf.TensorSpec([None], tf.int64)])

    @property
    def calibration_starts(self) -> np.ndarray:
        """The first forecast row of each window whose forecast lies behind the fitted rows, in the training part."""
        return np.arange(self._series.num_fitted, self._series.num_train - self._horizon + 1)

    @property
    def test_starts(self) -> np.ndarray:
        """The first forecast row of each test window: their forecasts lie in the test part, side by side."""
        last = len(self._series.values) - self._horizon
        return np.arange(max(self._series.num_train, self._window), last + 1, self._horizon)

    def train(self, global_batch_size: int, *, seed: int, epoch: int) -> tf.data.Dataset:
        """One epoch of full batches: the past, of shape (rows, window, num_columns), and the future, of shape (rows,
        horizon, num_targets, 1), both float32.

        Raises:
            DataError: if there are fewer windows than one batch takes.
        """
        num_steps = self.num_train // global_batch_size
        if num_steps == 0:
            raise DataError(
                f"A batch takes {global_batch_size} windows, but there are {self.num_train} to train on. "
                f"Use a global batch size of at most {self.num_train}."
            )
        order = np.random.default_rng([seed, epoch]).permutation(self.num_train)[: num_steps * global_batch_size]
        starts = (order + self._window).reshape(num_steps, global_batch_size)
        return self._dataset(tf.data.Dataset.from_tensor_slices(starts), global_batch_size)

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test windows in order of time; the last batch may have fewer."""
        return self._dataset(tf.data.Dataset.from_tensor_slices(self.test_starts).batch(global_batch_size), None)

    def _windows_at(self, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        past = tf.gather(self._values, starts[:, tf.newaxis] + tf.range(-self._window, 0, dtype=tf.int64))
        future = tf.gather(self._values, starts[:, tf.newaxis] + tf.range(self._horizon, dtype=tf.int64))
        return past, tf.gather(future, self._series.targets, axis=2)[..., tf.newaxis]

    def _dataset(self, starts: tf.data.Dataset, num_rows: int | None) -> tf.data.Dataset:
        """Windows at these starts; tf.data's autotuning stays off, whose thread would hold up the end of an epoch."""
        cut: Callable[..., tuple[tf.Tensor, tf.Tensor]] = self._cut.get_concrete_function()
        past_shape = [num_rows, self._window, len(self._series.names)]
        future_shape = [num_rows, self._horizon, len(self._series.targets), 1]

        def windows(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            past, future = cut(rows)
            return tf.ensure_shape(past, past_shape), tf.ensure_shape(future, future_shape)

        options = tf.data.Options()
        options.autotune.enabled = False
        options.deterministic = True
        num_calls = min(len(os.sched_getaffinity(0)), _MOST_PARALLEL_CALLS)
        return starts.map(windows, num_parallel_calls=num_calls).with_options(options)
