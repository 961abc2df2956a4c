"""Checks of the numbers that recipes take as options."""

from tfaccel.errors import WorkloadError


def check_counts(**values: int) -> None:
    """Raises WorkloadError for a value that is no whole number of at least 1.

    Example:
        >>> check_counts(epochs=0)
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `epochs` must be a whole number of at least 1. Received: epochs=0.
    """
    for name, value in values.items():
        if type(value) is not int or value < 1:
            raise WorkloadError(f"`{name}` must be a whole number of at least 1. Received: {name}={value!r}.")


def check_parts(**values: float) -> None:
    """Raises WorkloadError for a value that is no number from 0 to below 1.

    Example:
        >>> check_parts(dropout=1.5)
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `dropout` must be a number from 0 to below 1. Received: dropout=1.5.
    """
    for name, value in values.items():
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise WorkloadError(f"`{name}` must be a number from 0 to below 1. Received: {name}={value!r}.")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises WorkloadError for a value that is none of the choices.

    Example:
        >>> check_choice("model", "gru", ("lstm", "transformer"))
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `model` must be one of lstm, transformer. Received: model='gru'.
    """
    if value not in choices:
        raise WorkloadError(f"`{name}` must be one of {', '.join(choices)}. Received: {name}={value!r}.")
