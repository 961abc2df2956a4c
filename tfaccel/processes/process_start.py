"""How a process of a launch begins: its cores, its end with the launcher, and its environment, which imports read."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

# What differs from attempt to attempt of a launch, and what Python itself adds (PEP 538); from worker to worker.
_VOLATILE = ("TF_CONFIG", "TFACCEL_LAUNCH_ATTEMPT", "TF_XLA_FLAGS", "LC_CTYPE")
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in <linux/prctl.h>
_OWN = ("TFACCEL_HEARTBEAT", "CUDA_VISIBLE_DEVICES")


def become_worker(cores: str) -> None:
    """Pins this process to cores, whose numbers are joined by commas, and ends it with the process that started it."""
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the launcher ended meanwhile
        os._exit(1)


def environment_at_start() -> dict[str, str]:
    """The variables with which this program was started; those of its program before, if it has replaced that."""
    try:
        parts = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(part).split("=", 1) for part in parts if b"=" in part)


def changes_since_start() -> dict[str, str | None]:
    """The variables that this program has set since, or removed (None)."""
    before, now = environment_at_start(), dict(os.environ)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in _VOLATILE]
    return {name: now.get(name) for name in sorted(names)}


def environment_digest(environment: Mapping[str, str | None]) -> str:
    """A digest of variables, without those that differ from attempt to attempt, or from worker to worker.

    Example:
        >>> environment_digest({"A": "1", "TF_CONFIG": "{}"}) == environment_digest({"A": "1", "B": None})
        True
    """
    kept = {name: value for name, value in environment.items() if value is not None and name not in (*_VOLATILE, *_OWN)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
