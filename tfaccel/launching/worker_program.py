"""Becomes a worker: pins this process to its cores, ends it with its launcher, and runs the command in its place.

    python -m tfaccel.launching.worker_program CORES COMMAND...

CORES are the numbers of hardware threads, joined by commas; empty for all.
"""

from __future__ import annotations

import os
import sys

from tfaccel.processes.process_start import become_worker


def main(argv: list[str]) -> None:
    """Runs the command in place of this process."""
    cores, command = argv[1], argv[2:]
    become_worker(cores)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"The command to launch cannot be run on this machine: {command[0]!r}: {error.strerror}.")


if __name__ == "__main__":
    main(sys.argv)
