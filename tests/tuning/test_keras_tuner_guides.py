"""What Keras Tuner's guides do, done by `tfaccel.search`: run as they are, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import guide_cases as cases
import keras
import keras_tuner
import pytest

from tfaccel.errors import SearchError
from tfaccel.tuning.search import search

HERE = Path(__file__).parent
FLOAT32 = {"dtype_policy": "float32"}


@dataclass(frozen=True)
class Case:
    """A case of a guide: what is searched, and what must come out."""

    workload: Any
    space: Any
    options: dict[str, Any] = field(default_factory=dict)
    holds: Callable[[Any], bool] = lambda result: True
    names: str = ""  # hyperparameters of the first trial
    refused: str = ""


def trials(result):
    return [dict(row.hyperparameters) for row in result.rows]


def objective(name, direction):
    return keras_tuner.Objective(name, direction)


def counts(result, **numbers):
    statuses = [row.status for row in result.rows]
    return {name: statuses.count(name) for name in numbers} == numbers


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
        cases.TunedShuffle(),
        {"objective": "val_accuracy", "max_trials": 2},
        names="shuffle units",
    ),
    "a fit that searches batch size and epochs": Case(
        cases.images,
        cases.TunedBatch,
        {"objective": "val_accuracy", "max_trials": 2},
        names="batch epochs units",
    ),
    "a fit that preprocesses": Case(
        cases.images,
        cases.TunedPreprocessing,
        {"objective": "val_accuracy", "max_trials": 2},
        names="normalize shuffle units",
    ),
    "a hyperparameter in build and fit": Case(
        cases.images,
        cases.TunedCrop(),
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
        cases.ReturnsNumber(),
        {"max_trials": 2},
        lambda result: result.best.metrics == {"default_objective": min(row.score for row in result.rows)},
    ),
    "a fit that returns a dictionary": Case(
        cases.numbers,
        cases.ReturnsDictionary(),
        {"objective": objective("metric_a", "max"), "max_trials": 2},
        lambda result: result.best.score == max(row.metrics["metric_a"] for row in result.rows) < 0,
    ),
    "any function": Case(
        None,
        cases.AnyFunction,
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
        cases.CodeApart,
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

FAILED_TRIALS = {
    "max_retries_per_trial": Case(
        cases.numbers,
        cases.too_large,
        {"algorithm": "grid", "objective": "val_loss", "max_retries_per_trial": 2},
        lambda result: counts(result, completed=6, failed=6) and tried(result) == 18,
    ),
    "FailedTrialError": Case(
        cases.numbers,
        cases.too_large_for_good,
        {"algorithm": "grid", "objective": "val_loss", "max_retries_per_trial": 2},
        lambda result: counts(result, completed=6, failed=6) and tried(result) == 6,
    ),
    "max_consecutive_failed_trials": Case(
        cases.numbers,
        cases.too_large,
        {"algorithm": "grid", "objective": "val_loss", "max_consecutive_failed_trials": 2},
        refused=r"2 trials in a row have failed \(max_consecutive_failed_trials\), the last one with: ValueError: "
        r"Model too large!.*Finished trials are kept",
    ),
    "FatalError": Case(
        cases.numbers,
        cases.too_large_for_all,
        {"algorithm": "grid", "objective": "val_loss"},
        refused=r"Trial \d+ ended the search: FatalValueError: Model too large! .*trials are kept; continue with",
    ),
}

OWN_TRAINING = {
    "a loop of one's own": Case(
        cases.numbers,
        cases.OwnLoop(),
        {"objective": objective("my_metric", "min"), "max_trials": 2},
        lambda result: [row.epochs for row in result.rows] == [2, 2],
        names="batch_size rate units",
    ),
    "more hyperparameters for Keras Tuner's run_trial": Case(
        cases.images,
        cases.TunedShuffle(),
        {"tuner": cases.TunedByTuner, "objective": "val_accuracy", "max_trials": 2, "executions_per_trial": 2},
        lambda result: result.algorithm == "bayesian",
        names="batch_size shuffle units",
    ),
    "a loop that tells the oracle": Case(
        cases.numbers,
        cases.with_built_in_metric,
        {"tuner": cases.TellsOracle, "objective": objective("loss", "min"), "max_trials": 2},
        lambda result: all(row.score == row.metrics["loss"] for row in result.rows),
        names="units",
    ),
    "an argument that there is not": Case(
        cases.numbers,
        cases.NeedsMore,
        refused="NeedsMore.run_trial needs 'train_ds', which a search cannot pass",
    ),
    "a hook that is never called": Case(
        None,
        cases.OwnEnd,
        refused="OwnEnd overrides on_trial_end, which a search never calls",
    ),
    "an object for a class": Case(
        None,
        lambda folder: cases.AnyFunction(max_trials=2, directory=folder / "other"),
        refused="Pass the class AnyFunction, not an instance",
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

ALL = {**GETTING_STARTED, **TAILORING, **FAILED_TRIALS, **OWN_TRAINING, **OTHERS}


def kept(result, name):
    return all(Path(result.run_dir, "tuner", f"trial_{row.trial_id}", name).exists() for row in result.rows)


def tried(result):
    return len((Path(result.run_dir).parent / "tries").read_text().splitlines())


def answers(result):
    """What is asked of a tuner when its search is over."""
    models, best = result.get_best_models(num_models=2), result.get_best_hyperparameters(5)
    again = cases.several_layers(best[0])
    again.build((None, cases.SIDE, cases.SIDE, 1))
    x, y = cases._images(2, 32, one_hot=True)
    return (
        len(models) == 2
        and len(best) == 3
        and again.count_params() == models[0].count_params()
        and models[0].evaluate(x, y, verbose=0, return_dict=True)["accuracy"] == pytest.approx(result.best.score)
        and f"Trial {result.best.trial_id}: score" in result.results_summary(1)
    )


@pytest.fixture(autouse=True)
def where_workers_find_the_cases(monkeypatch, tmp_path, logical_devices):
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("TFACCEL_TEST_TRIES", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_guide(case, tmp_path):
    options = {"plan_fields": FLOAT32, **case.options}
    if "optimizer" in options and callable(options["optimizer"]):
        options["optimizer"] = options["optimizer"]()  # made here, where TensorFlow has started
    space = case.space
    if options.get("callbacks") == "tensorboard":
        options["callbacks"] = [keras.callbacks.TensorBoard(str(tmp_path / "board"))]
    if type(space) is type(lambda: 0) and space.__name__ == "<lambda>":
        space = space(tmp_path)
    run_dir = tmp_path / "run"
    if case.refused:
        with pytest.raises(SearchError, match=case.refused):
            search(case.workload, space, run_dir=run_dir, **options)
        began = case in FAILED_TRIALS.values()
        assert run_dir.exists() == began  # and else nothing was left
        return
    result = search(case.workload, space, run_dir=run_dir, **options)
    causes = [row.cause for row in result.rows if row.cause is not None]
    assert case in FAILED_TRIALS.values() or causes == []
    assert result.best is not None
    for name in case.names.split():
        assert name in result.rows[0].hyperparameters
    assert case.holds(result)
    assert not (HERE / "untitled_project").exists()
    if "callbacks" in options and (tmp_path / "board").exists():
        for row in result.rows:
            files = [path.name for path in (tmp_path / "board" / row.trial_id / "execution0").rglob("events*")]
            assert len(files) >= 2  # training, validation, and the hyperparameters


def test_chiefs_and_workers_by_hand_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "tuner0")
    with pytest.raises(SearchError, match=r"KERASTUNER_TUNER_ID is set, .* use parallel=NUMBER"):
        search(cases.images, cases.several_layers, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_search_that_was_ended_goes_on(tmp_path):
    """What ended it is tried again, and what was finished is not."""
    seen = []
    for resume in ("never", "auto"):
        with pytest.raises(SearchError, match="ended the search") as raised:
            search(
                cases.numbers,
                cases.too_large_for_all,
                run_dir=tmp_path / "run",
                algorithm="grid",
                resume=resume,
                objective="val_loss",
                plan_fields=FLOAT32,
            )
        seen.append((str(raised.value), (tmp_path / "run" / "trials.jsonl").read_text()))
    assert seen[0] == seen[1]
    assert {json.loads(line)["status"] for line in seen[0][1].splitlines()} == {"completed"}
