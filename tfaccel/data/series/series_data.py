"""The data of a forecasting workload: windows of the past and the future after each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.epochs import Batches
from tfaccel.data.series.augmentation import series_augmentation
from tfaccel.data.series.series_set import SeriesSet


class SeriesData(Batches):
    """Batches of windows of a series; see `tfaccel.data.series.batches`. The series is `source`.

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
        self._augmentation = series_augmentation(augmentation)
        num_windows = series.num_windows(window, horizon)
        super().__init__(series, self._batches, num_train_examples=num_windows, takes_every=True)

    def windows(self, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The windows of a part, in chronological order.

        Args:
            part: "test", or "calibration": the end of the training part, which the model is not fitted to.

        Returns:
            The first forecast row, of shape (num_windows,); the past, of shape (num_windows, window,
            num_columns); and the future of the targets, of shape (num_windows, horizon, num_targets).
        """
        starts = getattr(self.made(), f"{part}_starts")
        past, future = (
            self.source.values[starts[:, np.newaxis] + np.arange(*rows)]
            for rows in ((-self._window, 0), (0, self._horizon))
        )
        return starts, past, future[..., list(self.source.targets)]

    def _batches(self) -> Any:
        from tfaccel.data.series.batches import SeriesBatches

        options = {"window": self._window, "horizon": self._horizon, "augmentation": self._augmentation}
        return SeriesBatches(self.source, **options)  # type: ignore[arg-type]
