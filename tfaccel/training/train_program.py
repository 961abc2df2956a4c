"""Trains as one of the workers that `tfaccel.train(..., num_workers=N)` starts.

    python -m tfaccel.training.train_program TASK --run_dir=RUN_DIR

TASK is a file that `train_on_workers` has written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tfaccel.errors import TfaccelError
from tfaccel.processes.launched import DONE, INTERRUPTED, serve_launcher
from tfaccel.training.train import train
from tfaccel.training.train_on_workers import arguments_of_task


def main(argv: list[str]) -> int:
    """Trains; returns the exit status."""
    serve_launcher()
    try:
        workload, arguments = arguments_of_task(Path(argv[1]))
        train(workload, run_dir=argv[2].removeprefix("--run_dir="), **arguments)
    except TfaccelError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
