"""Checks that Keras Tuner, needed for searches but not for training, is installed."""

from __future__ import annotations

from importlib.util import find_spec

from tfaccel.errors import VersionError


def check_keras_tuner() -> None:
    """Raises VersionError if Keras Tuner is not installed.

    Example:
        >>> check_keras_tuner()
    """
    if find_spec("keras_tuner") is None:
        raise VersionError(
            "Searching needs `keras-tuner`, which is not installed. Install it: pip install 'tfaccel[tune]'"
        )
