"""The data of a forecasting workload: windows of the past, perhaps augmented, and the future after each."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.data.epochs import Batches
from tfaccel.data.pipeline import Augmentation, Pipeline
from tfaccel.data.series_set import SeriesSet
from tfaccel.errors import DataError

if TYPE_CHECKING:
    import tensorflow as tf

AUGMENTATIONS = ("none", "jitter")
_NUM_NOISE = 2**20


@dataclass(frozen=True, kw_only=True)
class SeriesAugmentation:
    r"""Random augmentation of the past, in units of the standard deviation of each column.

    A standardized value $x_{tc}$ of a window in column c becomes $s_c x_{tc} + j_{tc}$, with $j_{tc}$ from a normal
    distribution with mean 0, and one factor $s_c$ for each window and column from a normal distribution with mean 1.
    The future is not changed.

    Args:
        jitter: standard deviation of $j_{tc}$.
        scaling: standard deviation of $s_c$.

    Raises:
        DataError: for negative values.

    Source: T. Um et al., Data augmentation of wearable sensor data for Parkinson's disease monitoring using
    convolutional neural networks, 2017, https://arxiv.org/abs/1706.00527.

    Example:
        >>> augmentation = SeriesAugmentation(jitter=0.0, scaling=0.1)
        >>> augmentation.numbers(np.random.default_rng(0), 5, 2)["scale"].shape
        (5, 2)
    """

    jitter: float = 0.03
    scaling: float = 0.1

    def __post_init__(self) -> None:
        if min(self.jitter, self.scaling) < 0:
            raise DataError(f"`jitter` and `scaling` must be at least 0. Received: {self}.")

    def numbers(self, generator: np.random.Generator, num_windows: int, num_columns: int) -> dict[str, np.ndarray]:
        """The random numbers of an epoch: the factors of each window, and the offset of its jitter in fixed noise.

        Returns:
            "scale": float32, of shape (num_windows, num_columns), and "offset": int64, of shape (num_windows,).
        """
        scale = 1 + self.scaling * generator.standard_normal((num_windows, num_columns), np.float32)
        return {"scale": scale, "offset": generator.integers(0, _NUM_NOISE, num_windows)}

    def apply(self, past: Any, numbers: dict[str, Any]) -> Any:
        """Augments windows of the past with the numbers drawn for them.

        Args:
            past: a float32 tensor of shape (num_windows, window, num_columns), standardized.
            numbers: the output of `numbers` for these windows.
        """
        import tensorflow as tf

        changed = past * numbers["scale"][:, tf.newaxis]
        if not self.jitter:
            return changed
        num_values = past.shape[1] * past.shape[2]
        places = (numbers["offset"][:, tf.newaxis] + tf.range(num_values, dtype=tf.int64)) % _NUM_NOISE
        return changed + self.jitter * tf.reshape(tf.gather(_noise(), places), tf.shape(past))


@functools.cache
def _noise() -> np.ndarray:
    """Fixed standard normal noise, of which each window takes a slice."""
    return np.random.default_rng(0).standard_normal(_NUM_NOISE, np.float32)


def series_augmentation(name: str) -> SeriesAugmentation | None:
    """The augmentation of that name: "none", or "jitter" for a little jitter and scaling.

    Raises:
        DataError: for another name.

    Example:
        >>> series_augmentation("jitter")
        SeriesAugmentation(jitter=0.03, scaling=0.1)
    """
    if name not in AUGMENTATIONS:
        raise DataError(f"There is no augmentation {name!r} of a series. Augmentations: {', '.join(AUGMENTATIONS)}.")
    return SeriesAugmentation() if name == "jitter" else None


def series_batches(
    series: SeriesSet, *, window: int, horizon: int, augmentation: SeriesAugmentation | None = None
) -> Pipeline:
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
        >>> from tfaccel.data.series_set import pendulum_series
        >>> batches = series_batches(pendulum_series(), window=64, horizon=24)
        >>> past, future = next(iter(batches.train(32, seed=0, epoch=0)))
        >>> past.shape, future.shape
        (TensorShape([32, 64, 2]), TensorShape([32, 24, 2, 1]))
    """
    import tensorflow as tf

    num_columns, num_targets = len(series.names), len(series.targets)
    starts = series.first_rows("test", window=window, horizon=horizon)
    with tf.device("/CPU:0"):
        values = tf.constant(series.values)

    def windows_at(starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        past = tf.gather(values, starts[:, tf.newaxis] + tf.range(-window, 0, dtype=tf.int64))
        future = tf.gather(values, starts[:, tf.newaxis] + tf.range(horizon, dtype=tf.int64))
        targets = tf.gather(future, series.targets, axis=2)[..., tf.newaxis]
        past = tf.ensure_shape(past, [starts.shape[0], window, num_columns])
        return past, tf.ensure_shape(targets, [starts.shape[0], horizon, num_targets, 1])

    changed = None
    if augmentation is not None:
        means, deviations = (np.array(numbers, np.float32) for numbers in series.means_and_deviations())
        changed = Augmentation(
            lambda generator, count: augmentation.numbers(generator, count, num_columns),
            lambda pair, numbers: (
                means + deviations * augmentation.apply((pair[0] - means) / deviations, numbers),
                pair[1],
            ),
        )
    return Pipeline(
        lambda rows: windows_at(rows + window),
        num_examples=series.num_windows(window, horizon),
        augmentation=changed,
        cache=None,
        noun="windows",
        test=lambda: Pipeline(lambda rows: windows_at(tf.gather(starts, rows)), num_examples=len(starts), cache=None),
    )


class SeriesData(Batches):
    """Batches of windows of a series; see `tfaccel.data.series_data`. The series is `source`.

    Args:
        series: a `SeriesSet`.
        window: rows of the past that the model sees.
        horizon: rows that it forecasts.
        augmentation: "none", or "jitter" for slight random jitter and scaling of the past.

    Raises:
        DataError: if the series is too short for window and horizon.

    Example:
        >>> from tfaccel.data import pendulum_series
        >>> past, future = SeriesData(pendulum_series(), window=64, horizon=24).windows("test")[1:]
        >>> past.shape, future.shape
        ((33, 64, 2), (33, 24, 2))
    """

    source: SeriesSet

    def __init__(self, series: SeriesSet, *, window: int, horizon: int, augmentation: str = "none") -> None:
        self._window, self._horizon = window, horizon
        changes = series_augmentation(augmentation)
        super().__init__(
            series,
            lambda: series_batches(series, window=window, horizon=horizon, augmentation=changes),
            num_train_examples=series.num_windows(window, horizon),
            takes_every=True,
        )

    def windows(self, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The windows of a part, in chronological order.

        Args:
            part: "test", or "calibration": the end of the training part, which the model is not fitted to.

        Returns:
            The first forecast row, of shape (num_windows,); the past, of shape (num_windows, window,
            num_columns); and the future of the targets, of shape (num_windows, horizon, num_targets).
        """
        starts = self.source.first_rows(part, window=self._window, horizon=self._horizon)
        past, future = (
            self.source.values[starts[:, np.newaxis] + np.arange(*rows)]
            for rows in ((-self._window, 0), (0, self._horizon))
        )
        return starts, past, future[..., list(self.source.targets)]
