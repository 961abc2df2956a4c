"""Keras Tuner's guides to getting started, to tailored spaces and to kinds of models, done by `tfaccel.search`."""

from __future__ import annotations

from pathlib import Path

import guide_cases as cases
import guide_training as training
import keras
import keras_tuner
import pytest
from guide_searches import FLOAT32, HERE, Case, objective, search_as_guided, trials


@pytest.fixture(autouse=True)
def where_workers_find_the_cases(monkeypatch, tmp_path, logical_devices):
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("TFACCEL_TEST_TRIES", str(tmp_path))


def kept(result, name):
    return all(Path(result.run_dir, "tuner", f"trial_{row.trial_id}", name).exists() for row in result.rows)


def answers(result):
    """What is asked of a tuner when its search is over."""
    models, best = result.get_best_models(num_models=2), result.get_best_hyperparameters(5)
    again = cases.several_layers(best[0])
    again.build((None, cases.SIDE, cases.SIDE, 1))
    x, y = cases.image_arrays(2, 32, one_hot=True)
    return (
        len(models) == 2
        and len(best) == 3
        and again.count_params() == models[0].count_params()
        and models[0].evaluate(x, y, verbose=0, return_dict=True)["accuracy"] == pytest.approx(result.best.score)
        and f"Trial {result.best.trial_id}: score" in result.results_summary(1)
    )


GETTING_STARTED = {
    "layers whose number is searched": Case(
        cases.images,
        cases.several_layers,
        {"objective": "val_accuracy", "max_trials": 4},
        lambda result: all(f"units_{trial['num_layers'] - 1}" in trial for trial in trials(result)[1:]),
    ),
    "executions_per_trial": Case(
        cases.images,
        cases.several_layers,
        {"executions_per_trial": 2, "objective": "val_loss", "max_trials": 2},
        lambda result: all(row.score == row.metrics["val_loss"] for row in result.rows),
    ),
    "best models and hyperparameters": Case(
        cases.images,
        cases.several_layers,
        {"objective": "val_accuracy", "max_trials": 3, "keep_models": True},
        lambda result: answers(result),
    ),
    "a fit that passes its arguments on": Case(
        cases.images,
        training.TunedShuffle(),
        {"objective": "val_accuracy", "max_trials": 2},
        names="shuffle units",
    ),
    "a fit that searches batch size and epochs": Case(
        cases.images,
        training.TunedBatch,
        {"objective": "val_accuracy", "max_trials": 2},
        names="batch epochs units",
    ),
    "a fit that preprocesses": Case(
        cases.images,
        training.TunedPreprocessing,
        {"objective": "val_accuracy", "max_trials": 2},
        names="normalize shuffle units",
    ),
    "a hyperparameter in build and fit": Case(
        cases.images,
        training.TunedCrop(),
        {"objective": "val_accuracy", "max_trials": 3},
        names="image_size",
    ),
    "an Objective": Case(
        cases.numbers,
        cases.with_built_in_metric,
        {"objective": objective("val_mean_absolute_error", "min"), "max_trials": 2},
        lambda result: result.best.score == min(row.metrics["val_mean_absolute_error"] for row in result.rows),
    ),
    "several Objectives": Case(
        cases.numbers,
        cases.with_built_in_metric,
        {"objective": [objective("val_mean_absolute_error", "min"), "val_loss"], "max_trials": 2},
        lambda result: result.objective.names == ("val_mean_absolute_error", "val_loss"),
    ),
    "a metric of one's own": Case(
        cases.numbers,
        cases.with_custom_metric,
        {"objective": objective("val_custom_metric", "min"), "max_trials": 2},
        lambda result: all(row.score == pytest.approx(row.metrics["val_loss"], rel=1e-4) for row in result.rows),
    ),
    "a fit that returns a number": Case(
        cases.numbers,
        training.ReturnsNumber(),
        {"max_trials": 2},
        lambda result: result.best.metrics == {"default_objective": min(row.score for row in result.rows)},
    ),
    "a fit that returns a dictionary": Case(
        cases.numbers,
        training.ReturnsDictionary(),
        {"objective": objective("metric_a", "max"), "max_trials": 2},
        lambda result: result.best.score == max(row.metrics["metric_a"] for row in result.rows) < 0,
    ),
    "any function": Case(
        None,
        training.AnyFunction,
        {"max_trials": 8, "parallel": 2},
        lambda result: (
            len({trial["x"] for trial in trials(result)}) == 8
            and 1.0 <= result.best.score < 1.5
            and result.get_best_hyperparameters()[0].get("x") == result.best.hyperparameters["x"]
        ),
        names="x",
    ),
    "Keras code apart": Case(
        None,
        training.CodeApart,
        {"max_trials": 2},
        lambda result: kept(result, "mine.keras"),
        names="optimizer units",
    ),
    "HyperResNet": Case(
        cases.images,
        keras_tuner.applications.HyperResNet(input_shape=(8, 8, 1), classes=cases.CLASSES),
        {"objective": "val_accuracy", "max_trials": 1},
    ),
}

TAILORING = {
    "search a few": Case(
        cases.labelled_images,
        cases.tailored,
        {
            "hyperparameters": cases.hyperparameters(learning_rate=(1e-4, 1e-2)),
            "tune_new_entries": False,
            "objective": "val_accuracy",
            "max_trials": 3,
        },
        lambda result: (
            {(t["units"], t["dropout"]) for t in trials(result)} == {(16, False)}
            and not {t["learning_rate"] for t in trials(result)} & {1e-2, 1e-3, 1e-4}
        ),
        names="dropout learning_rate units",
    ),
    "fix a few": Case(
        cases.labelled_images,
        cases.tailored,
        {
            "hyperparameters": cases.hyperparameters(learning_rate=1e-4),
            "tune_new_entries": True,
            "objective": "val_accuracy",
            "max_trials": 4,
        },
        lambda result: (
            {t["learning_rate"] for t in trials(result)} == {1e-4}
            and len({(t["units"], t["dropout"]) for t in trials(result)}) == 4
        ),
    ),
    "allow no others": Case(
        cases.labelled_images,
        cases.tailored,
        {
            "hyperparameters": cases.hyperparameters(learning_rate=1e-4),
            "allow_new_entries": False,
            "objective": "val_accuracy",
        },
        refused="`allow_new_entries` is `False`, but found new entries .*units",
    ),
    "override what is compiled": Case(
        cases.images,
        cases.several_layers,
        {
            "optimizer": lambda: keras.optimizers.Adam(1e-3),
            "loss": "mse",
            "metrics": ["mae"],
            "objective": "val_loss",
            "max_trials": 2,
            "keep_models": True,
        },
        lambda result: (
            set(result.best.metrics) >= {"mae", "val_mae"}
            and "accuracy" not in result.best.metrics
            and result.get_best_models()[0].loss == "mse"
        ),
    ),
    "override the loss alone": Case(
        cases.images,
        cases.several_layers,
        {"loss": "mse", "objective": "val_accuracy", "max_trials": 1},
        lambda result: result.best.metrics["loss"] < 0.5,
    ),
    "compile what is not compiled": Case(
        cases.labelled_images,
        cases.not_compiled,
        {"optimizer": "adam", "loss": "mse", "objective": "val_loss", "max_trials": 1},
    ),
    "HyperXception": Case(
        cases.labelled_images,
        keras_tuner.applications.HyperXception(input_shape=(8, 8, 1), classes=cases.CLASSES),
        {
            "hyperparameters": cases.hyperparameters(learning_rate=(1e-4, 1e-2)),
            "tune_new_entries": False,
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
            "objective": "val_accuracy",
            "max_trials": 1,
        },
    ),
}

OTHERS = {
    "TensorBoard, and kinds of models": Case(
        cases.images,
        cases.mlp_or_cnn,
        {"objective": "val_accuracy", "max_trials": 4, "callbacks": "tensorboard"},
        lambda result: all(("momentum" in t) == (t["model_type"] == "cnn") and "units_0" in t for t in trials(result)),
    ),
    "kinds of models, by Optuna": Case(
        cases.images,
        cases.mlp_or_cnn,
        {"objective": "val_accuracy", "max_trials": 6, "algorithm": "tpe", "num_initial_points": 2, "parallel": 2},
        lambda result: all(("momentum" in t) == (t["model_type"] == "cnn") and "units_0" in t for t in trials(result)),
    ),
    "Hyperband under a mirrored strategy": Case(
        cases.labelled_images,
        cases.with_batch_norm,
        {
            "objective": "val_accuracy",
            "algorithm": "hyperband",
            "epochs": 2,
            "parallel": 1,
            "algorithm_options": {"factor": 3, "hyperband_iterations": 1},
            "callbacks": [keras.callbacks.EarlyStopping("val_accuracy")],
            "plan_fields": {**FLOAT32, "strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2},
        },
    ),
    "scikit-learn's models": Case(
        cases.images,
        cases.forest,
        refused="must return a compiled Keras model, .* Received: RandomForestClassifier",
    ),
    "SklearnTuner": Case(
        cases.images,
        keras_tuner.SklearnTuner,
        refused="SklearnTuner is not a subclass of keras_tuner.Tuner",
    ),
}

ALL = {**GETTING_STARTED, **TAILORING, **OTHERS}


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_guide(case, tmp_path):
    search_as_guided(case, tmp_path)
