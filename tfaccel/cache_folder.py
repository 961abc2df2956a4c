"""The folder of all that is kept between runs: `TFACCEL_CACHE`, or else ~/.cache/tfaccel."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

from tfaccel.errors import PlanError
from tfaccel.local_path import local_path

logger = logging.getLogger("tfaccel")

CACHE_VARIABLE = "TFACCEL_CACHE"


def cache_dir() -> Path | None:
    """The directory of everything that is measured once: `TFACCEL_CACHE`, or else ~/.cache/tfaccel.

    None, with one warning, for a user who has no home directory, as in some containers: nothing is kept then.
    """
    try:
        return local_path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "tfaccel", PlanError)
    except RuntimeError:  # HOME is not set, and the user's number is in no list of users
        warn_once(
            f"There is no home directory (HOME is not set), so nothing that is measured is kept. Set {CACHE_VARIABLE} "
            "to a directory to write to."
        )
        return None


@functools.cache
def warn_once(text: str) -> None:
    """Logs a warning, unless it was logged before."""
    logger.warning(text)
