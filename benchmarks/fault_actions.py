"""What a worker of the benchmark of faults does to itself, or to its run directory, in the middle of training."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

_FULL_BYTES = 4_000  # less than any checkpoint has
_ROOM_BYTES = 256 << 20
_PIECE = bytes(1 << 16)


def no_action() -> None:
    """Nothing is to be undone."""


def act(action: str, run_dir: Path) -> Callable[[], None]:
    """Does an action, and returns how to undo it.

    Args:
        action: a signal's name for this process; "exception"; "file_limit": no file may grow beyond 4 kB; "fill_disk":
            a file beside the run directory takes all that its file system has; "remove_run_dir"; "address_space": this
            process may take 256 MB more, no matter how much memory there is.
        run_dir: the run directory.

    Raises:
        ValueError: for "exception".
    """
    if action == "exception":
        raise ValueError("a mistake in a callback")
    if action == "file_limit":
        return _limit_files()
    if action == "fill_disk":
        return _fill_disk(run_dir.parent / "filler")
    if action == "address_space":
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _ROOM_BYTES, resource.RLIM_INFINITY))
    elif action == "remove_run_dir":
        shutil.rmtree(run_dir)
    else:
        os.kill(os.getpid(), getattr(signal, action))
    return no_action


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _limit_files() -> Callable[[], None]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails as on a full disk
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_BYTES, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _fill_disk(filler: Path) -> Callable[[], None]:
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(_PIECE):
            pass
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(b"\0"):
            pass
    return filler.unlink
