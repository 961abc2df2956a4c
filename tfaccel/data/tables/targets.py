"""The target column, as classes or as numbers, and what float32 loses of numbers."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from tfaccel.data.tables.column_kinds import NUMBERS_ADVICE, as_numbers, spelled_twice, unread_notation
from tfaccel.data.tables.table import Column
from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

# A target with more classes than this, and few rows for each, is treated as numeric.
_MAX_CLASSES, _FEW_ROWS_PER_CLASS = 100, 10

_MAX_ERROR = 1e-4  # as a fraction of how much numbers vary
_SMALLEST_TARGETS, _LARGEST_TARGETS = 1e-15, 1e15
_SAMPLE = 10_000  # numbers of which quartiles are taken


def class_numbers(
    column: Column, source: str, *, known: tuple[str, ...] = (), smallest: int = 1
) -> tuple[tuple[str, ...], np.ndarray]:
    """The class names, and the class index of each row.

    Classes are sorted by name, or numerically if they are numbers.

    Args:
        column: the target, with a value in every row.
        source: where it is from, for messages.
        known: the classes, if they are known already.
        smallest: minimum number of rows of each class.

    Raises:
        DataError: if there are no rows, only one class, an unknown class, a class with too few rows, or far too many
            classes.

    Example:
        >>> class_numbers(Column("kind", np.array(["dog", "cat", "dog"], dtype=object)), "pets.csv")
        (('cat', 'dog'), array([1, 0, 1]))
    """
    texts = column.texts()
    if len(texts) == 0:
        raise DataError(f"No row of {source} has a value in the target column {column.name!r}.")
    found = set(texts.tolist())
    is_number = not np.isnan(column.numbers[0]).any()
    twice = _spelled_twice(found, is_number)
    if twice is not None:
        raise DataError(
            f"The target column {column.name!r} of {source} has the classes {twice[0]!r} and {twice[1]!r}, which are "
            "the same. Write it in one way."
        )
    names = known or tuple(sorted(found, key=lambda text: (float(text) if is_number else 0.0, text)))
    unknown = sorted(found - set(names))
    if unknown:
        hint = did_you_mean(unknown[0], names) or f" Classes: {', '.join(names[:10])}."
        raise DataError(f"{source} has the class {unknown[0]!r}, which the training rows do not have.{hint}")
    if len(names) < 2:
        raise DataError(
            f"The target column {column.name!r} of {source} must have at least two classes. "
            f"Received: {names[0]!r} only."
        )
    if len(names) > _MAX_CLASSES and len(texts) < _FEW_ROWS_PER_CLASS * len(names):
        raise DataError(
            f"The target column {column.name!r} of {source} has {len(names)} classes in {len(texts)} rows. "
            "If it holds numbers to predict, use the recipe tabular_regression."
        )
    get_number = {name: number for number, name in enumerate(names)}
    numbers = np.array([get_number[text] for text in texts.tolist()], dtype=np.int64)
    counts = np.bincount(numbers, minlength=len(names))
    if not known and counts.min() < smallest:
        raise DataError(
            f"The class {names[int(counts.argmin())]!r} of column {column.name!r} in {source} has one row; it needs at "
            "least two, one to train on and one to test with. Add rows, or remove the class."
        )
    return names, numbers


def _spelled_twice(classes: set[str], is_number: bool) -> tuple[str, str] | None:
    """Two classes that are the same truth value or, if all are numbers, the same number; None if there are none."""
    if not is_number:
        return spelled_twice(sorted(classes))
    first: dict[Decimal, str] = {}
    for text in sorted(classes):
        other = first.setdefault(Decimal(text), text)
        if other != text:
            return other, text
    return None


def target_numbers(column: Column, source: str) -> np.ndarray:
    """The numbers to predict, float32, with NaN for missing values.

    Raises:
        DataError: if the column holds text (row and column are named), all numbers are equal, or float32 is too coarse
            for them.

    Example:
        >>> target_numbers(Column("price", np.array(["3", None, "4.5"], dtype=object)), "pets.csv").tolist()
        [3.0, nan, 4.5]
    """
    numbers, wrong = column.numbers
    present = numbers[~np.isnan(numbers)]
    notation = unread_notation(column) if len(wrong) else ""
    if notation.startswith("numbers"):
        raise DataError(f"The target column {column.name!r} of {source} holds {notation}. {NUMBERS_ADVICE}.")
    if len(wrong) > len(present):
        raise DataError(
            f"The target column {column.name!r} of {source} holds texts, but numbers are predicted. "
            "To predict classes, use the recipe tabular_classification."
        )
    numbers = as_numbers(column, source)
    if len(np.unique(present)) < 2:
        raise DataError(f"The target column {column.name!r} of {source} must hold at least two different numbers.")
    check_float32(numbers, column.name, source)
    return numbers.astype(np.float32)


def lost_in_float32(numbers: np.ndarray) -> tuple[int, bool]:
    """How many distinct numbers float32 merges with others, and whether its error is large beside their variation.

    Decimals are counted only if the error is large: else it is no larger than that of centered and scaled numbers.

    Args:
        numbers: float64; NaN for missing values.

    Example:
        >>> day = 1.7e12 + 86_400_000 * np.arange(3)  # dates in milliseconds
        >>> lost_in_float32(day), lost_in_float32(1.7e12 + np.arange(3)), lost_in_float32(np.array([0.1, 0.2, 0.7]))
        ((0, True), (2, True), (0, False))
    """
    present = numbers[~np.isnan(numbers)]
    with np.errstate(over="ignore"):
        single = present.astype(np.float32).astype(np.float64)
    if np.array_equal(single, present):
        return 0, False
    errors = np.abs(single - present)
    low, high = np.quantile(present[:: 1 + len(present) // _SAMPLE], [0.25, 0.75])
    is_coarse = _is_coarse(errors, float(np.std(present)))
    if not is_coarse:  # A few outliers may make the deviation large.
        is_coarse = _is_coarse(errors[(present >= low) & (present <= high)], float(high - low))
    if not is_coarse and (present != np.round(present)).any():
        return 0, False
    distinct = np.unique(present)
    with np.errstate(over="ignore"):
        return len(distinct) - len(np.unique(distinct.astype(np.float32))), is_coarse


def _is_coarse(errors: np.ndarray, spread: float) -> bool:
    return bool(errors.max(initial=0.0) > _MAX_ERROR * spread > 0)


def check_float32(numbers: np.ndarray, name: str, source: str) -> int:
    """Checks numbers that a model predicts; returns how many distinct ones float32 merges with others.

    Args:
        numbers: float64; NaN for missing values.
        name: of their column, for messages.
        source: where it is from, for messages.

    Raises:
        DataError: if the error of float32 is large beside their variation, or float32 cannot hold their squares.

    Example:
        >>> check_float32(1.7e12 + np.arange(3.0), "time", "t.csv")
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: The numbers in column 'time' of t.csv are around 1.7e+12 and vary by 0.816: float32, \
in which models predict, is too coarse for them. Subtract a constant from the column, such as 1.7e+12.
    """
    present = numbers[~np.isnan(numbers)]
    deviation = float(np.std(present)) if len(present) else 0.0
    if deviation and not _SMALLEST_TARGETS <= deviation <= _LARGEST_TARGETS:
        raise DataError(
            f"The numbers in column {name!r} of {source} vary by {deviation:.3g}. Their squares are summed in float32, "
            f"for which this is too {'small' if deviation < 1 else 'large'}. Divide the column by a constant, such as "
            f"{deviation:.0e}."
        )
    num_merged, is_coarse = lost_in_float32(numbers)
    if is_coarse:
        center = float(np.nanmedian(numbers))
        raise DataError(
            f"The numbers in column {name!r} of {source} are around {center:.3g} and vary by "
            f"{deviation:.3g}: float32, in which models predict, is too coarse for them. Subtract a "
            f"constant from the column, such as {center:.3g}."
        )
    return num_merged
