"""Loads TensorFlow, waits, and runs a Python program as a worker when it is told to: a restart then need not load it.

    python -m tfaccel.training.waiting_program CORES FILE PROGRAM [ARGUMENTS]

CORES are as for `worker_program`. What importing has changed in the environment is written to FILE. PROGRAM is a Python
file, or `-m` and the name of a module. The order to begin is a line of standard input: the variables that this attempt
has, as JSON. The program finds the process as Python would have started it, but for the modules that are loaded.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

from tfaccel.files import write_json
from tfaccel.processes.process_start import become_worker, changes_since_start


def main(argv: list[str]) -> None:
    """Waits, and runs the program; ends if nobody can give the order any more."""
    cores, file, program = argv[1], Path(argv[2]), argv[3:]
    become_worker(cores)
    is_module = program[0] == "-m"
    sys.argv = program[1:] if is_module else program
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(program[0]))
    _load(file)
    order = sys.stdin.readline()
    if not order:
        return
    for name, value in json.loads(order).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if is_module:
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program[0], run_name="__main__")


def _load(file: Path) -> None:
    """Imports what training needs, and tells how that has changed the environment."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import tfaccel.training.fit
    import tfaccel.training.train  # noqa: F401

    write_json(file, changes_since_start())


if __name__ == "__main__":
    main(sys.argv)
