"""Plain Keras Tuner on a recipe's own search space, one trial after another: what a search is compared to.

    python -m tfaccel.benchmarks.plain_program '{"recipe": "image_classification", "max_trials": 16, "epochs": 9, ...}'

Models, batches and their order are those of `tfaccel search` with the same seed; they are trained by `Model.fit`. It
writes on standard output, as JSON, the best score and the hyperparameters of each trial.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import keras
import keras_tuner
import tensorflow as tf

from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import compile_arguments, num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.training.runtime import Runtime
from tfaccel.tuning.source import SearchSource, recipe_space


class RecipeModel(keras_tuner.HyperModel):
    """A recipe's models, trained on its data by `Model.fit`.

    Args:
        recipe: its name.
        epochs: of each trial.
        seed: of weights and data.
        fixed: arguments of the recipe that are the same in all trials.
    """

    def __init__(self, recipe: str, *, epochs: int, seed: int, fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self._source = SearchSource.of(recipe, None)
        self._epochs = epochs
        self._seed = seed
        self._fixed = dict(fixed)
        workload = self._source.make_workload(fixed)
        self._space = recipe_space(self._source.workload_function(), workload, fixed=fixed)
        self._made: Workload | None = None

    def build(self, hp: Any) -> keras.Model:
        """The compiled model."""
        work = self._made = self._source.make_workload({**self._fixed, **self._space(hp)})
        with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=work.global_batch_size)) as runtime:
            runtime.seed = self._seed
            runtime.seed_generators()
            model = work.build_model()
            model.compile(**compile_arguments(work, num_steps=num_optimizer_steps(work, epochs=self._epochs)))
        return model

    def fit(self, hp: Any, model: keras.Model, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains on all epochs, each in the order that the seed gives it."""
        work = self._made
        if work is None:
            raise RuntimeError("A model is built before it is trained.")
        size = work.global_batch_size
        passes = [work.train_data(size, seed=self._seed, epoch=epoch) for epoch in range(self._epochs)]
        batches = functools.reduce(lambda before, one: before.concatenate(one), passes).prefetch(tf.data.AUTOTUNE)
        held_out = None if work.validation_data is None else work.validation_data(size).prefetch(tf.data.AUTOTUNE)
        return model.fit(
            batches,
            epochs=self._epochs,
            steps_per_epoch=int(passes[0].cardinality()),
            shuffle=False,
            verbose=0,
            validation_data=held_out,
            callbacks=kwargs["callbacks"],
        )


def main(argv: list[str]) -> int:
    """Runs the search; returns the exit status."""
    task = json.loads(argv[0])
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    model = RecipeModel(task["recipe"], epochs=task["epochs"], seed=task["seed"], fixed=task.get("fixed", {}))
    objective = keras_tuner.Objective(task["objective"], task["direction"])
    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.RandomSearch(
            model,
            objective=objective,
            max_trials=task["max_trials"],
            seed=task["seed"],
            directory=folder,
            project_name="plain",
        )
        tuner.search(verbose=0)
        trials = tuner.oracle.get_best_trials(task["max_trials"])
        found = {
            "best": float(trials[0].score),
            "trials": {trial.trial_id: trial.hyperparameters.values for trial in trials},
        }
    output.write(json.dumps(found))
    output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
