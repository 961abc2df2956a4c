"""A hyperparameter search for an MLP on the digits, by Optuna's own loop or by `tfaccel.search`.

    python -m tfaccel.benchmarks.sampler_program '{"program": "optuna", "seed": 1, "max_trials": 30, "epochs": 8}'

Both use the same space, models, batches and seed; Optuna's loop trains with `Model.fit`. The program writes the
validation loss of each trial and the CPU time of each suggestion to standard output, as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.images.digits import digits
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.runtime import Runtime
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.oracles import make_oracle
from tfaccel.tuning.search import search
from tfaccel.tuning.search_result import TrialRow, trial_folder, write_outcome

_BATCH = 64
_OBJECTIVE = Objective((("val_loss", "min"),))
_PLAN: dict[str, Any] = {
    "strategy": "none",
    "devices": ("CPU:0",),
    "dtype_policy": "float32",
    "jit_compile": False,
    "global_batch_size": _BATCH,
}


def workload() -> Workload:
    """The digits, each flattened to a vector of 64 values."""
    train, test = digits().load()
    splits = [(np.float32(np.asarray(split.images).reshape(-1, 64) / 255), split.labels) for split in (train, test)]
    arrays: list[tuple[Any, ...]] = list(splits)

    def train_data(batch_size: int, *, seed: int, epoch: int) -> tf.data.Dataset:
        order = np.random.default_rng((seed, epoch)).permutation(len(arrays[0][0]))
        return tf.data.Dataset.from_tensor_slices(tuple(part[order] for part in arrays[0])).batch(batch_size)

    def held_out(batch_size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(arrays[1]).batch(batch_size)

    return Workload(
        "digits_mlp",
        keras.Sequential,
        dict,
        train_data,
        held_out,
        global_batch_size=_BATCH,
        epochs=8,
        num_train_examples=len(arrays[0][0]),
    )


def make_model(values: Mapping[str, Any]) -> keras.Model:
    """The compiled model with these hyperparameters."""
    layers: list[Any] = [keras.Input((64,))]
    for _ in range(values["layers"]):
        layers += [keras.layers.Dense(values["units"], values["activation"]), keras.layers.Dropout(values["dropout"])]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    optimizer = keras.optimizers.get(
        {
            "class_name": values["optimizer"],
            "config": {"learning_rate": values["learning_rate"], "weight_decay": values["weight_decay"]},
        }
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def build(hp: Any) -> keras.Model:
    """The space for Keras Tuner."""
    return make_model(
        {
            "layers": hp.Int("layers", 1, 3),
            "units": hp.Int("units", 16, 256, sampling="log"),
            "activation": hp.Choice("activation", ["relu", "tanh", "selu"]),
            "dropout": hp.Float("dropout", 0.0, 0.6),
            "optimizer": hp.Choice("optimizer", ["sgd", "adam", "rmsprop"]),
            "learning_rate": hp.Float("learning_rate", 1e-4, 1.0, sampling="log"),
            "weight_decay": hp.Float("weight_decay", 1e-6, 1e-1, sampling="log"),
        }
    )


def suggested(trial: Any) -> dict[str, Any]:
    """The same space for Optuna."""
    return {
        "layers": trial.suggest_int("layers", 1, 3),
        "units": trial.suggest_int("units", 16, 256, log=True),
        "activation": trial.suggest_categorical("activation", ["relu", "tanh", "selu"]),
        "dropout": trial.suggest_float("dropout", 0.0, 0.6),
        "optimizer": trial.suggest_categorical("optimizer", ["sgd", "adam", "rmsprop"]),
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1.0, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-1, log=True),
    }


def optuna_alone(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the search with Optuna's own loop."""
    import optuna

    seconds: list[float] = []
    work, seed, epochs = workload(), task["seed"], task["epochs"]
    held_out = work.validation_data(_BATCH) if work.validation_data else None

    def objective(trial: Any) -> float:
        before = time.process_time()
        values = suggested(trial)
        seconds.append(time.process_time() - before)
        keras.backend.clear_session()
        with Runtime(Plan(**_PLAN), seed=seed):
            model = make_model(values)
            passes = [work.train_data(_BATCH, seed=seed, epoch=epoch) for epoch in range(epochs)]
            batches = functools.reduce(lambda one, other: one.concatenate(other), passes)
            history = model.fit(
                batches,
                epochs=epochs,
                steps_per_epoch=int(passes[0].cardinality()),
                verbose=0,
                validation_data=held_out,
            )
        losses = history.history["val_loss"]
        return float(min(losses)) if np.isfinite(losses).all() else float("nan")

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=task["max_trials"])
    return {
        "losses": [trial.value for trial in study.trials],
        "values": [trial.params for trial in study.trials],
        "suggestion_seconds": seconds,
    }


def by_search(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the same search with `tfaccel.search`."""
    options = {name: task[name] for name in ("algorithm", "seed", "max_trials", "epochs")}
    with tempfile.TemporaryDirectory() as folder:
        name = "tfaccel.benchmarks.sampler_program"
        result = search(
            f"{name}:workload",
            f"{name}:build",
            run_dir=Path(folder, "run"),
            objective="val_loss",
            plan_fields=_PLAN,
            **options,
        )
        space = json.loads(Path(folder, "run", "space.json").read_text(encoding="utf-8"))
    return {
        "losses": [row.score for row in result.rows],
        "values": [dict(row.hyperparameters) for row in result.rows],
        "suggestion_seconds": suggestion_seconds(space, SearchOptions(**options), result.rows),
    }


def suggestion_seconds(space: dict[str, Any], options: SearchOptions, rows: Any) -> list[float]:
    """The CPU time of each suggestion in a replay of the trials, in which no worker competes for the cores."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        oracle: Any = make_oracle(space, options, _OBJECTIVE, run_dir=run_dir, epochs=1, on_row=lambda row: None)
        oracle.set_project_dir(folder, "tuner")
        for row in rows:
            before = time.process_time()
            trial = oracle.create_trial("worker")
            seconds.append(time.process_time() - before)
            trial_folder(run_dir, trial.trial_id).mkdir(exist_ok=True)
            ended = TrialRow(**{**row.to_json(), "trial_id": trial.trial_id})
            write_outcome(run_dir, ended)
            oracle.finish(trial.trial_id)
    return seconds


def main(argv: list[str]) -> int:
    """Runs a search; returns the exit status."""
    task = json.loads(argv[0])
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    found = optuna_alone(task) if task["program"] == "optuna" else by_search(task)
    output.write(json.dumps(found))
    output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
