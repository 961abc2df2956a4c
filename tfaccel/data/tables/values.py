"""The values of a table's fields: which texts denote missing ones, and numbers as texts and back."""

from __future__ import annotations

import numpy as np
import pyarrow
from pyarrow import compute

# Markers of a missing value; in others' capitals, such as Na and Null, they are symbols and names. Among numbers and
# dates, NO_VALUE marks one too, in any capitals; among texts it is a value.
_WORDS = ("na", "n/a", "nan", "null", "-nan", "+nan", "#n/a", "#na", "#n/a n/a", "<na>")
_OF_C = ("-nan(ind)", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")  # which programs in C write on Windows
MISSING = ("", "?", *_WORDS, *map(str.upper, _WORDS), "NaN", "-NaN", "+NaN", *_OF_C)
NO_VALUE = "none"
_SPELLINGS = pyarrow.array(MISSING)
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITY = r"^[+-]?(?i:inf|infinity)$"
_EXACT = 2.0**53  # float64 holds all integers up to this one


def clean_texts(texts: pyarrow.StringArray, *, keeps_markers: bool = False) -> pyarrow.StringArray:
    """Texts without whitespace around them, null for missing values.

    Args:
        texts: of fields.
        keeps_markers: whether only empty texts are missing values.

    Example:
        >>> clean_texts(pyarrow.array([" cat", "", "N/A", "None"])).to_pylist()
        ['cat', None, None, 'None']
    """
    trimmed = compute.utf8_trim_whitespace(texts)
    missing = compute.equal(trimmed, "") if keeps_markers else compute.is_in(trimmed, value_set=_SPELLINGS)
    return compute.if_else(missing, None, trimmed)


def is_no_value(text: str | None) -> bool:
    """Whether a field among numbers or dates is empty.

    Example:
        >>> is_no_value(None), is_no_value("NONE"), is_no_value("0")
        (True, True, False)
    """
    return text is None or text.lower() == NO_VALUE


def number_text(number: float) -> str:
    """The shortest text that is read as this number; integers have no decimal point.

    Example:
        >>> number_text(3.0), number_text(0.1), number_text(float(2**53 - 1))
        ('3', '0.1', '9007199254740991')
    """
    return str(int(number)) if abs(number) < _EXACT and number == int(number) else repr(number)


def numbers_of_texts(texts: pyarrow.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """Texts as float64, with NaN for what is missing or no finite number; and the rows of the latter.

    Example:
        >>> numbers_of_texts(pyarrow.array(["3", None, "three", "3_4", "none"]))
        (array([ 3., nan, nan, nan, nan]), array([2, 3]))
    """
    plain = compute.utf8_trim_whitespace(_with_ascii_digits(texts))
    numbers = compute.if_else(compute.match_substring_regex(plain, _NUMBER), plain, None)
    missing = compute.equal(compute.utf8_lower(texts), NO_VALUE).fill_null(True)
    return finite_numbers(compute.cast(numbers, pyarrow.float64()), missing.to_numpy(zero_copy_only=False))


def are_infinite(texts: pyarrow.StringArray) -> np.ndarray:
    """Which texts are numbers, but none that float64 holds: a boolean mask.

    Example:
        >>> are_infinite(pyarrow.array(["inf", "-Infinity", "1e999", "1e9", "info"])).tolist()
        [True, True, True, False, False]
    """
    of_number = compute.match_substring_regex(texts, _NUMBER)
    numbers = compute.cast(compute.if_else(of_number, texts, None), pyarrow.float64())
    found = compute.or_(compute.is_inf(numbers).fill_null(False), compute.match_substring_regex(texts, _INFINITY))
    return found.to_numpy(zero_copy_only=False)


def finite_numbers(numbers: pyarrow.DoubleArray, missing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers with NaN for those that are not finite; and the rows of these that are not missing."""
    found = numbers.to_numpy(zero_copy_only=False)
    finite = np.isfinite(found)
    return np.where(finite, found, np.nan), np.flatnonzero(~missing & ~finite)


def _with_ascii_digits(texts: pyarrow.StringArray) -> pyarrow.StringArray:
    """Texts with digits of other scripts, such as the Arabic ones, written in ASCII."""
    if compute.all(compute.string_is_ascii(texts)).as_py() is not False:
        return texts
    return pyarrow.array([None if text is None else _ascii_digits(text) for text in texts.to_pylist()], texts.type)


def _ascii_digits(text: str) -> str:
    return text if text.isascii() else "".join(str(int(mark)) if mark.isdecimal() else mark for mark in text)


def merged_integers(texts: list[str]) -> tuple[str, str] | None:
    """Two of these texts that are different integers, but the same number in float64; None if there are none.

    Example:
        >>> merged_integers(["1", "1.0", "9007199254740992", "9007199254740993"])
        ('9007199254740992', '9007199254740993')
    """
    first: dict[float, str] = {}
    for text in texts:
        if text.lstrip("+-").isdecimal() and abs(float(text)) >= _EXACT:
            other = first.setdefault(float(text), text)
            if int(other) != int(text):
                return other, text
    return None
