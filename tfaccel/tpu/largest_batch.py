"""The largest batch that fits into a TPU's memory, found with few compilations."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

ROWS_OF_A_TILE = 8
MAX_TRIALS = 8
MAX_UNANSWERED = 2
_NEAR = 1.1  # The answer is at most this much too small.
_NEEDED = re.compile(r"\((\d+(?:\.\d+)?)([KMGT])\) exceeds available \w+ \((\d+(?:\.\d+)?)([KMGT])\)")
_USED = re.compile(r"[Uu]sed (\d+(?:\.\d+)?)([KMGT]) of (\d+(?:\.\d+)?)([KMGT])")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Trial:
    """How one batch size went: whether it fits, and how many times the memory there is it needs, where known."""

    fits: bool
    memory_part: float | None = None


def largest_batch(try_batch: Callable[[int], Trial | None], *, known: int, highest: int) -> int:
    """The largest multiple of 8 between a size that fits and a limit that fits too, to within a tenth.

    Args:
        try_batch: compiles for that many rows; None where it could not be told, which ends the search the second time.
        known: a number of rows that fits.
        highest: the most rows to try.

    Example:
        >>> largest_batch(lambda rows: Trial(rows <= 3000), known=64, highest=100_000)
        2992
    """
    low, high = known, max(known, highest // ROWS_OF_A_TILE * ROWS_OF_A_TILE)
    if high == low:
        return low
    candidate, foretold, num_unanswered = high, False, 0
    for _ in range(MAX_TRIALS):
        trial = try_batch(candidate)
        if trial is None:
            num_unanswered += 1
            if num_unanswered == MAX_UNANSWERED:
                break
            trial = Trial(fits=False)  # fewer rows may get an answer
        low, high = (candidate, high) if trial.fits else (low, candidate)
        if low >= high or high - low <= ROWS_OF_A_TILE or high / low <= _NEAR:
            break
        guess = math.sqrt(low * high)
        if trial.memory_part is not None:  # memory grows about as the batch does
            guess = 0.95 * candidate / trial.memory_part
        elif trial.fits and foretold:  # one step further should fail and end the search
            guess = low * _NEAR
        foretold = trial.memory_part is not None
        candidate = _between(low, guess, high)
    return low


def memory_part(message: str) -> float | None:
    """How many times the memory there is a program needs, by the compiler's out-of-memory error; None if unsaid.

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
