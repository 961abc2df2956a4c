"""`BadData`: whether damaged examples stop a run or are left out, and which ones were left out."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tfaccel.errors import DataError
from tfaccel.known_names import did_you_mean

FAIL, SKIP = ON_BAD_DATA = ("fail", "skip")
MAX_BAD_FRACTION = 0.01
SKIP_ADVICE = 'Or leave out what is damaged: on_bad_data="skip" (--on_bad_data=skip).'
_MOST_NAMED = 10  # files, in messages
_MOST_PLACES = 20  # places in one file, in JSON

logger = logging.getLogger("tfaccel")
R = TypeVar("R")


@dataclass(frozen=True)
class _Damage:
    """One damaged example, or the rest of a file; `count` is None for a file of unknown length."""

    reason: str
    count: int | None


class BadData:
    """What to do with examples that cannot be read: a damaged TFRecord, a truncated image, a malformed row.

    Data are checked completely when they are opened, before training. What is left out is therefore the same on all
    workers and after resuming, and an epoch has the same number of steps throughout a run. Pass a new object to each
    dataset, and to `tfaccel.Workload(bad_data=...)`, which puts the counts into `result.json`.

    Args:
        on_bad_data: "fail": the first damaged example raises a `DataError` that names file, place and cause; "skip":
            exactly the damaged examples are left out, and counted for each file.
        max_bad_fraction: with "skip", the largest fraction of examples that may be left out.

    Raises:
        DataError: for another value.

    Example:
        >>> bad = BadData("skip", max_bad_fraction=0.25)
        >>> bad.found(DataError("Line 3 of a.csv has 2 fields."), "a.csv", 3)
        >>> bad.finish(9, "rows")
        >>> bad.num_skipped, bad.to_json()["files"]["a.csv"]["places"]
        (1, [3])
    """

    def __init__(self, on_bad_data: str = FAIL, max_bad_fraction: float = MAX_BAD_FRACTION) -> None:
        if on_bad_data not in ON_BAD_DATA:
            hint = did_you_mean(str(on_bad_data), ON_BAD_DATA)
            raise DataError(f'`on_bad_data` must be "fail" or "skip". Received: on_bad_data={on_bad_data!r:.80}.{hint}')
        if type(max_bad_fraction) not in (int, float) or not 0 <= max_bad_fraction < 1:
            raise DataError(
                "`max_bad_fraction` must be a number from 0 to below 1. "
                f"Received: max_bad_fraction={max_bad_fraction!r:.80}."
            )
        self.on_bad_data = on_bad_data
        self.max_bad_fraction = max_bad_fraction
        self.advice = SKIP_ADVICE  # the end of messages about damage
        self.num_read = 0
        self._found: dict[tuple[str, int | None], _Damage] = {}
        self._num_logged = 0

    @property
    def skips(self) -> bool:
        """Whether damaged examples are left out."""
        return self.on_bad_data == SKIP

    @property
    def num_skipped(self) -> int:
        """The number of examples left out; estimated where a file's rest, or a whole file, cannot be read."""
        return sum(damage.count or 1 for damage in self._found.values())

    def found(
        self,
        error: DataError,
        file: str | os.PathLike[str],
        place: int | None = None,
        *,
        count: int | None = 1,
    ) -> None:
        """Takes note of damage.

        Args:
            error: what is wrong; its message names file and place.
            file: where it is.
            place: its record, row or line in the file; None for the whole file.
            count: examples that are lost; None for as many as the other files have on average.

        Raises:
            DataError: with "fail", or if the file system caused the error.
        """
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno is not None:
            raise error  # not the content, but the access to it, which may be different on another worker
        if not self.skips:
            raise error if self.advice in str(error) else DataError(f"{error} {self.advice}") from error
        self._found.setdefault((str(file), place), _Damage(str(error), count))

    def tried(self, read: Callable[[], R], file: str | os.PathLike[str], place: int | None = None) -> R | None:
        """What `read` returns; None if it raises a `DataError`, which is noted as in `found`."""
        try:
            return read()
        except DataError as error:
            self.found(error, file, place)
            return None

    def finish(self, num_read: int, noun: str, *, num_files: int = 1) -> None:
        """Call it when all data have been read: checks the fraction of damaged examples, and logs what is left out.

        Args:
            num_read: examples that could be read.
            noun: what examples are called.
            num_files: files that they came from.

        Raises:
            DataError: if more than `max_bad_fraction` of all examples are damaged.
        """
        self.num_read += num_read
        average = max(1, round(num_read / max(1, num_files)))
        for key, damage in self._found.items():
            if damage.count is None:
                self._found[key] = _Damage(damage.reason, average)
        bad, total = self.num_skipped, self.num_skipped + self.num_read
        if bad > self.max_bad_fraction * total:
            first = next(iter(self._found.values())).reason
            raise DataError(
                f"{bad:,} of {total:,} {noun} ({bad / total:.2%}) cannot be read, more than "
                f"max_bad_fraction={self.max_bad_fraction:g}: {self._files_text()}. The first: {first} Repair the "
                "files, or allow more: max_bad_fraction (--max_bad_fraction)."
            )
        if bad > self._num_logged:
            logger.warning(
                f"Left out {bad:,} of {total:,} {noun} ({bad / total:.2%}) that cannot be read: {self._files_text()}."
            )
            self._num_logged = bad

    def digest(self) -> str:
        """A text that differs if other examples were left out; "" if none was. Folders do not count."""
        if not self._found:
            return ""
        left_out = sorted((os.path.basename(file), -1 if at is None else at) for file, at in self._found)
        return f"{self.num_skipped} left out, {zlib.crc32(str(left_out).encode()):08x}"

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON-serializable data: in all, and for each file with the first places and the first cause."""
        files: dict[str, dict[str, Any]] = {}
        for (file, place), damage in self._found.items():
            entry = files.setdefault(file, {"num_skipped": 0, "places": [], "reason": damage.reason})
            entry["num_skipped"] += damage.count or 1
            if place is not None and len(entry["places"]) < _MOST_PLACES:
                entry["places"].append(place)
        return {
            "on_bad_data": self.on_bad_data,
            "max_bad_fraction": self.max_bad_fraction,
            "num_read": self.num_read,
            "num_skipped": self.num_skipped,
            "files": files,
        }

    def _files_text(self) -> str:
        files = self.to_json()["files"]
        named = [f"{entry['num_skipped']:,} in {file}" for file, entry in list(files.items())[:_MOST_NAMED]]
        more = len(files) - len(named)
        return ", ".join(named) + (f" and {more:,} more files" if more else "")


def always_fail() -> BadData:
    """For commands that cannot leave anything out, because there is a result for every row: messages do not advise it.

    Example:
        >>> always_fail().found(DataError("Line 3 is damaged."), "a.csv", 3)
        Traceback (most recent call last):
        ...
        tfaccel.errors.DataError: Line 3 is damaged.
    """
    bad_data = BadData()
    bad_data.advice = ""
    return bad_data
