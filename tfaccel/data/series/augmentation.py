"""Augmentation of windows of a series: jittered values and scaled columns, with random numbers fixed for each epoch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfaccel.errors import DataError

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
