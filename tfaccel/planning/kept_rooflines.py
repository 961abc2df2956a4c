"""Rooflines on disk: `tfaccel.estimates.roofline` keeps them; `tfaccel report` shows them beside runs of a workload."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfaccel.errors import TfaccelError
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import cache_dir, keep_in_cache

logger = logging.getLogger("tfaccel")

_FORMAT = 1


def keep_roofline(workload_key: str, plan: Plan, roofline: Mapping[str, Any]) -> Path | None:
    """Saves a roofline; returns its file, or None with one warning if it cannot be written.

    Args:
        workload_key: `plan_key` of the workload and the machine, without fixed fields.
        plan: the plan that was measured.
        roofline: what was measured, as JSON data.
    """
    entry = {"format": _FORMAT, "measured": time.strftime("%Y-%m-%d"), "roofline": dict(roofline)}
    return keep_in_cache(_file(workload_key, plan), entry, "The roofline was")


def kept_roofline(workload_key: str, plan: Plan) -> dict[str, Any] | None:
    """The roofline that was kept for the same workload, machine and plan, as JSON data; None if there is none.

    A file that cannot be read is ignored, with one warning.
    """
    file = _file(workload_key, plan)
    if file is None:
        return None
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
        found = dict(entry["roofline"])
        if entry["format"] != _FORMAT or Plan.from_json(found["plan"]) != plan:
            raise ValueError("it is an entry for something else")
        return found
    except FileNotFoundError:
        return None
    except (TfaccelError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        _warn_once(file, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return None


def _file(workload_key: str, plan: Plan) -> Path | None:
    """Plans that differ only in their reasons have the same file. None if there is no cache."""
    directory = cache_dir()
    if directory is None:
        return None
    settings = {name: value for name, value in plan.to_json().items() if name != "reasons"}
    digest = hashlib.sha256(json.dumps([workload_key, settings], sort_keys=True).encode()).hexdigest()[:32]
    return directory / "rooflines" / f"{digest}.json"


@functools.cache
def _warn_once(file: Path, reason: str) -> None:
    logger.warning(f"The measured roofline in {file} is ignored: {reason}")
