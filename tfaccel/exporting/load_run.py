"""`load_run`: loads the config, result and model of a finished run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.errors import RunDirError
from tfaccel.exporting.load_model import MODEL_FILE, load_keras_model
from tfaccel.known_names import suggests_names
from tfaccel.planning.load_workload import check_finished_run
from tfaccel.short_repr import short_repr
from tfaccel.training.run.checkpoint_files import checkpoint_weights
from tfaccel.training.run.result import TrainResult

if TYPE_CHECKING:
    import keras


@short_repr
@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        path: its directory.
        config: its name, options, epochs, seed and batch size.
        result: its plan, metrics, times and verdict.

    Example:
        >>> [field for field in Run.__dataclass_fields__]
        ['path', 'config', 'result']
    """

    path: Path
    config: dict[str, Any]
    result: TrainResult

    def load_model(self, *, modules: Sequence[str] = (), checkpoint: str | None = None) -> keras.Model:
        """Loads the trained model, without compiling it.

        Args:
            modules: your modules that define layers of the model.
            checkpoint: None for the model at the end of training; "best" for the weights of the checkpoint with the
                lowest `val_loss` (`loss` without validation data), or the name of a folder in `checkpoints/`.

        Raises:
            ExportError: if the file is invalid, or contains code.
            RunDirError: if there is no such checkpoint, or it is broken.
        """
        if checkpoint is None:
            return load_keras_model(self.path / MODEL_FILE, modules=modules)
        weights = checkpoint_weights(self.path / "checkpoints", checkpoint)
        model = load_keras_model(self.path / MODEL_FILE, modules=modules)
        model.set_weights(weights)
        return model


@suggests_names
def load_run(run_dir: str | os.PathLike[str]) -> Run:
    """Loads a finished run.

    Args:
        run_dir: the directory.

    Raises:
        RunDirError: if there is no finished run, or its files cannot be read.

    Example:
        >>> load_run("no/such/run")
        Traceback (most recent call last):
        ...
        tfaccel.errors.RunDirError: There is no run directory no/such/run. Give the directory of a finished run.
    """
    path = check_finished_run(run_dir)
    try:
        config = dict(json.loads((path / "config.json").read_text()))
        result = TrainResult.from_json({**json.loads((path / "result.json").read_text()), "run_dir": str(path)})
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunDirError(f"The run in {path} cannot be read ({error}). Give the directory of another run.") from error
    return Run(path, config, result)
