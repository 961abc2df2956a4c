"""Rows of a script's own data, kept in its run: exported files are compared with the model on them."""

from __future__ import annotations

import logging
from pathlib import Path

import keras
import numpy as np

from tfaccel.files import whole_file
from tfaccel.planning.load_workload import list_recipes
from tfaccel.planning.workload import Workload
from tfaccel.training.run.run_dir import RunDir

logger = logging.getLogger("tfaccel")

_FILE = "example_inputs.npz"
_NUM_ROWS = 4
_MAX_BYTES = 1 << 24


def first_inputs(work: Workload, batch_size: int, *, num_rows: int) -> list[np.ndarray]:
    """The model's inputs, flattened, for the first rows of the validation data; without any, of the training data."""
    validation = work.validation_data
    data = work.train_data(batch_size, seed=0, epoch=0) if validation is None else validation(batch_size)
    inputs = keras.utils.unpack_x_y_sample_weight(next(iter(data)))[0]
    return [np.asarray(leaf)[:num_rows] for leaf in keras.tree.flatten(inputs)]


def write_example_inputs(directory: RunDir, work: Workload, batch_size: int) -> None:
    """Writes a few rows into a run directory, unless the run is a recipe's, whose data can be read again."""
    if not directory.writes or any(work.name == recipe.name for recipe in list_recipes()):
        return
    try:
        leaves = [
            leaf.astype(bytes) if leaf.dtype == object else leaf
            for leaf in first_inputs(work, batch_size, num_rows=_NUM_ROWS)
        ]
    except Exception as error:  # the user's data may raise anything, and be at their end
        logger.debug("No rows of the data are kept for exports: %s", error)
        return
    if sum(leaf.nbytes for leaf in leaves) <= _MAX_BYTES:
        directory.check_held()
        with whole_file(directory.path / _FILE) as temporary, temporary.open("wb") as file:
            np.savez(file, **{str(place): leaf for place, leaf in enumerate(leaves)})  # type: ignore[arg-type]


def read_example_inputs(run_dir: Path) -> list[np.ndarray] | None:
    """The rows that `write_example_inputs` wrote; None if there are none.

    Raises:
        ValueError, OSError: if the file cannot be read.
    """
    if not (run_dir / _FILE).is_file():
        return None
    with np.load(run_dir / _FILE, allow_pickle=False) as arrays:
        return [arrays[str(place)] for place in range(len(arrays.files))]
