"""Training takes full batches only, so a set has to fill one."""

from tfaccel.errors import DataError


def check_one_batch(num_rows: int | None, global_batch_size: int, noun: str = "examples") -> None:
    """Raises DataError where the examples (called by that noun) are known not to fill one batch.

    Example:
        >>> check_one_batch(3, 4)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: A batch takes 4 examples, but there are 3 to train on. Use a ...
    """
    if num_rows is not None and num_rows < global_batch_size:
        raise DataError(
            f"A batch takes {global_batch_size} {noun}, but there are {num_rows} to train on. "
            f"Use a global batch size of at most {num_rows}."
        )
