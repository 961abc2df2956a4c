"""Epoch metrics for TensorBoard, with the names of `keras.callbacks.TensorBoard`, at a fraction of its cost.

Writing a scalar with TensorFlow's summary operations takes a millisecond, and evaluating a schedule eagerly several: a
third of a small model's epoch. One event for all scalars of an epoch, and a traced function for the rates, avoid this.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tfaccel.graph_function import graph_function
from tfaccel.training.run.utilization import Utilization
from tfaccel.training.steps.model_parts import get_optimizers, stepping_optimizers


class TensorBoardScalars(keras.callbacks.Callback):
    """Writes `epoch_NAME` for each metric, and the learning rates, into `train` and `validation` folders.

    The epoch's performance is in `train` too, as `performance/NAME`.

    Args:
        folder: the directory to pass to `tensorboard --logdir`.
        utilization: a callback before this one, which knows the epoch's performance.
    """

    def __init__(self, folder: Path, utilization: Utilization) -> None:
        super().__init__()
        self._utilization = utilization
        self._folder = folder
        self._writers: dict[str, EventFileWriter] = {}
        self._rates: Any = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the epoch's metrics."""
        values = {name: float(value) for name, value in (logs or {}).items()}
        held_out = {name.removeprefix("val_"): value for name, value in values.items() if name.startswith("val_")}
        trained = {name: value for name, value in values.items() if not name.startswith("val_")}
        performance = self._utilization.of_epoch
        scalars = {} if performance is None else performance.scalars()
        tags = {f"epoch_{name}": value for name, value in (trained | self._learning_rates()).items()}
        self._write("train", epoch, tags | {f"performance/{name}": value for name, value in scalars.items()})
        self._write("validation", epoch, {f"epoch_{name}": value for name, value in held_out.items()})

    def on_train_end(self, logs: Any = None) -> None:
        """Closes the files."""
        self.close()

    def close(self) -> None:
        """Closes the files, also after an error: each has a thread that writes."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write(self, name: str, epoch: int, values: dict[str, float]) -> None:
        if not values:
            return
        if name not in self._writers:
            self._writers[name] = EventFileWriter(str(self._folder / name))
        scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        self._writers[name].add_event(Event(wall_time=time.time(), step=epoch, summary=Summary(value=scalars)))

    def _learning_rates(self) -> dict[str, float]:
        optimizers = [inner for outer in get_optimizers(self.model).values() for inner in stepping_optimizers(outer)]
        if self._rates is None:
            rates = lambda: [tf.convert_to_tensor(o.learning_rate) for o in optimizers]  # noqa: E731
            self._rates = graph_function(rates, autograph=True)
        names = ["learning_rate"] if len(optimizers) == 1 else [f"learning_rate_{o.name}" for o in optimizers]
        return {name: float(rate) for name, rate in zip(names, self._rates(), strict=True)}
