"""`Model.fit` on a family, in timed windows: with its defaults, or another dtype policy.

The environment decides on Keras's backend.
"""

from __future__ import annotations

import math
from multiprocessing.connection import Connection
from typing import Any

import keras

from tfaccel.benchmarks.choice_tasks import FAMILIES, compile_args
from tfaccel.benchmarks.window_answers import WindowAnswers, answered, in_windows

_ENDLESS = 10**9


def main(connection: Connection, arguments: list[str]) -> int:
    """Trains as ordered; returns the exit status."""
    task = connection.recv()
    return answered(connection, lambda: _train(connection, task))


def _train(connection: Connection, task: dict[str, Any]) -> None:
    answers = WindowAnswers(connection)
    if keras.backend.backend() != task["backend"]:
        raise RuntimeError(f"Keras runs on the backend {keras.backend.backend()!r}, not on {task['backend']!r}.")
    family = FAMILIES[task["family"]]
    keras.config.set_dtype_policy(task.get("dtype_policy", "float32"))
    keras.utils.set_random_seed(task["seed"])
    model = family.build_model()
    model.compile(**compile_args())
    x, y = family.arrays()
    answers.built(sum(math.prod(variable.shape) for variable in model.trainable_variables))
    model.make_train_function()
    model.train_function = in_windows(model.train_function, answers)
    model.fit(x, y, batch_size=family.global_batch_size, epochs=_ENDLESS, verbose=0)
