"""Rows of the data that a run was validated with."""

from __future__ import annotations

import logging
import os
from typing import Any

import keras
import numpy as np

from tfaccel.exporting.sample_rows import NUM_ROWS
from tfaccel.planning.run_workload import workload_of_run

logger = logging.getLogger("tfaccel")


def rows_of_run(run_or_model: Any) -> Any:
    """The model's inputs for the first rows of the data of a run of a recipe; None if they cannot be had.

    Args:
        run_or_model: the run directory; anything else has no data.
    """
    if not isinstance(run_or_model, str | os.PathLike) or not os.path.isdir(run_or_model):
        return None
    try:
        work = workload_of_run(run_or_model)
        validation = work.validation_data
        data = work.train_data(NUM_ROWS, seed=0, epoch=0) if validation is None else validation(NUM_ROWS)
        inputs = keras.utils.unpack_x_y_sample_weight(next(iter(data)))[0]
        return keras.tree.map_structure(np.asarray, inputs)
    except Exception as error:  # the data may be gone, and a user's function may raise anything
        reason = " ".join(str(error).split())[:200]
        logger.info("The data of the run cannot be read again, so files are compared on random numbers: %s", reason)
        return None
