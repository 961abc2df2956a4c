"""Becomes a worker: pins this process to its cores, ends it with its launcher, and runs the command in its place.

    python -m tfaccel.launching.worker_program CORES COMMAND...

CORES are the numbers of hardware threads, joined by commas; empty for all.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in <linux/prctl.h>


def main(argv: list[str]) -> None:
    """Runs the command in place of this process."""
    cores, command = argv[1], argv[2:]
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the launcher ended meanwhile
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"The command to launch cannot be run on this machine: {command[0]!r}: {error.strerror}.")


if __name__ == "__main__":
    main(sys.argv)
