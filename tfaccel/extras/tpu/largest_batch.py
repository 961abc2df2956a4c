"""Finds the largest batch that fits into a TPU's memory, with few compilations."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

ROWS_OF_A_TILE = 8
MAX_TRIALS = 8
MAX_UNANSWERED = 2
_NEAR = 1.1  # the true maximum is at most this many times the answer
_NEEDED = re.compile(r"\((\d+(?:\.\d+)?)([KMGT])\) exceeds available \w+ \((\d+(?:\.\d+)?)([KMGT])\)")
_USED = re.compile(r"[Uu]sed (\d+(?:\.\d+)?)([KMGT]) of (\d+(?:\.\d+)?)([KMGT])")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Trial:
    """The result for one batch size: whether it fits, and its needed memory relative to the available, if known."""

    fits: bool
    memory_part: float | None = None


def largest_batch(try_batch: Callable[[int], Trial | None], *, known: int, highest: int) -> int:
    """The largest multiple of 8 that fits, between `known` and `highest`, to within 10 %.

    Args:
        try_batch: compiles for a number of rows; returns None without an answer, which ends the search the second time.
        known: a number of rows that fits.
        highest: max rows to try.

    Example:
        >>> largest_batch(lambda rows: Trial(rows <= 3000), known=64, highest=100_000)
        2992
    """
    low, high = known, max(known, highest // ROWS_OF_A_TILE * ROWS_OF_A_TILE)
    if high == low:
        return low
    candidate, predicted, num_unanswered = high, False, 0
    for _ in range(MAX_TRIALS):
        trial = try_batch(candidate)
        if trial is None:
            num_unanswered += 1
            if num_unanswered == MAX_UNANSWERED:
                break
            trial = Trial(fits=False)  # a smaller size may get an answer
        low, high = (candidate, high) if trial.fits else (low, candidate)
        if low >= high or high - low <= ROWS_OF_A_TILE or high / low <= _NEAR:
            break
        guess = math.sqrt(low * high)
        if trial.memory_part is not None:  # memory grows roughly in proportion to the batch
            guess = 0.95 * candidate / trial.memory_part
        elif trial.fits and predicted:  # the next size should fail and end the search
            guess = low * _NEAR
        predicted = trial.memory_part is not None
        candidate = _between(low, guess, high)
    return low


def memory_part(message: str) -> float | None:
    """Needed relative to available memory, from the compiler's out-of-memory error; None if it does not say.

    Example:
        >>> memory_part("the total memory required for HLO temporaries (31.50G) exceeds available HBM (15.75G).")
        2.0
    """
    match = _NEEDED.search(message) or _USED.search(message)
    if match is None:
        return None
    return float(match[1]) * _UNITS[match[2]] / (float(match[3]) * _UNITS[match[4]])


def _between(low: int, guess: float, high: int) -> int:
    """A multiple of 8 near the guess, above `low` and below `high`."""
    rows = int(guess) // ROWS_OF_A_TILE * ROWS_OF_A_TILE
    first = (low // ROWS_OF_A_TILE + 1) * ROWS_OF_A_TILE
    return min(max(rows, first), high - ROWS_OF_A_TILE if high - ROWS_OF_A_TILE > low else high)
