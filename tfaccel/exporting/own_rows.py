"""Rows of the data that a run was validated with."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.exporting.sample_rows import NUM_ROWS
from tfaccel.planning.load_workload import workload_of_run
from tfaccel.training.run.run_dir import first_inputs, read_example_inputs

logger = logging.getLogger("tfaccel")


def rows_of_run(run_or_model: Any) -> list[np.ndarray] | None:
    """The model's inputs, flattened, for the first rows of the data of a run; None if they cannot be had.

    Args:
        run_or_model: the run directory; anything else has no data.
    """
    if not isinstance(run_or_model, str | os.PathLike) or not os.path.isdir(run_or_model):
        return None
    try:
        kept = read_example_inputs(Path(run_or_model))
        return first_inputs(workload_of_run(run_or_model), NUM_ROWS, num_rows=NUM_ROWS) if kept is None else kept
    except Exception as error:  # the data may be gone, and a user's function may raise anything
        reason = " ".join(str(error).split())[:200]
        logger.info("The data of the run cannot be read again, so files are compared on random numbers: %s", reason)
        return None
