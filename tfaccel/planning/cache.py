"""What is measured once is kept on disk: in the folder `TFACCEL_CACHE`, or else ~/.cache/tfaccel.

A file that is damaged, or that an earlier version wrote, is ignored with one warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tfaccel.errors import TfaccelError, in_one_line
from tfaccel.files import CACHE_VARIABLE, cache_dir, warn_once, write_json
from tfaccel.planning.plan import Plan

logger = logging.getLogger("tfaccel")

# What reading a damaged file may raise.
DAMAGES = (
    *(TfaccelError, OSError, ValueError, LookupError, TypeError),
    *(AttributeError, ArithmeticError, RecursionError, StopIteration),
)
_ROOFLINE_FORMAT = 1
_Kept = TypeVar("_Kept")


def cache_file(*place: str) -> Path | None:
    """A file in the cache; None if there is no cache."""
    directory = cache_dir()
    return None if directory is None else directory.joinpath(*place)


def get_digest(parts: Any) -> str:
    """A digest of JSON values, which names a file."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def keep_in_cache(file: Path | None, entry: Mapping[str, Any], what: str) -> Path | None:
    """Writes a JSON file; returns it, or None with one warning, which begins with `what`, if it cannot be written.

    Without a cache (`file` is None), there is nothing to write: `cache_dir` has warned already.
    """
    if file is None:
        return None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, entry)
    except OSError as error:
        logger.warning(f"{what} not kept: {error}. Set {CACHE_VARIABLE} to a directory to write to.")
        return None
    return file


def read_from_cache(file: Path | None, read: Callable[[Any], _Kept], ignored: str) -> _Kept | None:
    """What a JSON file holds; None if there is none, and with one warning if it is damaged.

    Args:
        file: the file; None without a cache.
        read: makes the object from the JSON values, or raises an error.
        ignored: the beginning of the warning, with the file's place, such as "The measured plan in {} is ignored".
    """
    if file is None:
        return None
    try:
        return read(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except DAMAGES as error:
        say_ignored(ignored.format(file), error)
        return None


def today() -> str:
    """The date, as entries have it."""
    return time.strftime("%Y-%m-%d")


def say_ignored(ignored: str, error: Exception) -> None:
    """Says, once, that a damaged or stale file is ignored, and why."""
    warn_once(f"{ignored}: {type(error).__name__}: {in_one_line(error, 200)}")


def keep_roofline(workload_key: str, plan: Plan, roofline: Mapping[str, Any]) -> Path | None:
    """Saves a roofline for `tfaccel report`; returns its file, or None with one warning if it cannot be written.

    Args:
        workload_key: `plan_key` of the workload and the machine, without fixed fields.
        plan: the plan that was measured.
        roofline: what was measured, as JSON data.
    """
    entry = {"format": _ROOFLINE_FORMAT, "measured": today(), "roofline": dict(roofline)}
    return keep_in_cache(_roofline_file(workload_key, plan), entry, "The roofline was")


def kept_roofline(workload_key: str, plan: Plan) -> dict[str, Any] | None:
    """The roofline that was kept for the same workload, machine and plan, as JSON data; None if there is none."""

    def read(entry: Any) -> dict[str, Any]:
        found = dict(entry["roofline"])
        if entry["format"] != _ROOFLINE_FORMAT or Plan.from_json(found["plan"]) != plan:
            raise ValueError("it is an entry for something else")
        return found

    return read_from_cache(_roofline_file(workload_key, plan), read, "The measured roofline in {} is ignored")


def _roofline_file(workload_key: str, plan: Plan) -> Path | None:
    """Plans that differ only in their reasons have the same file."""
    settings = {name: value for name, value in plan.to_json().items() if name != "reasons"}
    return cache_file("rooflines", f"{get_digest([workload_key, settings])}.json")
