"""Runs the trials of a search with a subclass of `keras_tuner.Tuner`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_tuner
from keras_tuner.engine.base_tuner import BaseTuner
from keras_tuner.engine.trial import Trial

from tfaccel.errors import SearchError
from tfaccel.training.runtime import Runtime
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.own_arguments import OwnArguments
from tfaccel.tuning.own_fit import fatal_unless_metrics
from tfaccel.tuning.private_keras_tuner import EXPLORES_SPACE, OpenOracle
from tfaccel.tuning.trial_callbacks import Pruner, TrialReport

# A search does these itself and would never call an override.
_NEVER_CALLED = (
    "__init__",
    "search",
    "on_search_begin",
    "on_search_end",
    "on_trial_begin",
    "on_trial_end",
    "pre_create_trial",
    EXPLORES_SPACE,
)


class _Space(keras_tuner.HyperModel):
    """The space of a search as a Tuner's `hypermodel`."""

    def __init__(self, build: Callable[[Any], Any], fit: Callable[..., Any] | None) -> None:
        super().__init__()
        self.build = build
        if fit is not None:
            self.fit = fit


class _LocalOracle(OpenOracle):
    """The oracle that `run_trial` sees; the chief's oracle writes the trial's file."""

    def save_trial(self, trial: Any) -> None:
        """Does nothing."""


def check_tuner(kind: Any) -> None:
    """Checks that a class can run trials.

    Raises:
        SearchError: if it is not a Tuner, or overrides a method that a search never calls.
    """
    if not (isinstance(kind, type) and issubclass(kind, BaseTuner)):
        raise SearchError(f"A tuner must be a subclass of keras_tuner.Tuner. Received: {kind!r:.200}.")
    if not issubclass(kind, keras_tuner.Tuner):
        raise SearchError(
            f"{kind.__name__} is not a subclass of keras_tuner.Tuner, and may tune other models than Keras models. Use "
            "it without tfaccel, or write a subclass of keras_tuner.Tuner with a run_trial that returns the score."
        )
    own = [entry for entry in kind.__mro__ if not entry.__module__.startswith("keras_tuner.")]
    odd = next((name for entry in own for name in _NEVER_CALLED if entry is not object and name in vars(entry)), None)
    if odd is not None:
        raise SearchError(
            f"{kind.__name__} overrides {odd}, which a search never calls, because it creates and ends trials itself. "
            "Override only run_trial."
        )


def make_tuner(
    kind: Any, space: Callable[[Any], Any] | None, fit: Callable[..., Any] | None, objective: Objective, run_dir: Path
) -> Any:
    """Creates a Tuner for one trial.

    Only `keras_tuner.Tuner.__init__` is called: that of a subclass such as `RandomSearch` would create an oracle.

    Args:
        kind: the Tuner class.
        space: the model-building function; None if `run_trial` needs none.
        fit: the custom `fit` of a HyperModel, if any.
        objective: of the search.
        run_dir: of the search.
    """
    tuner = kind.__new__(kind)
    oracle = _LocalOracle(objective=keras_tuner.Objective(objective.name, objective.direction))
    runs_itself = kind.run_trial is not keras_tuner.Tuner.run_trial
    if space is None and not runs_itself:
        raise SearchError(f"{kind.__name__} does not override run_trial, so it needs a space: build(hp).")
    keras_tuner.Tuner.__init__(
        tuner, oracle, hypermodel=None if runs_itself else _nothing, directory=str(run_dir), project_name="tuner"
    )
    tuner.oracle = oracle
    tuner.hypermodel = None if space is None else _Space(space, fit)
    return tuner


def _nothing(hp: Any) -> None:
    """Replaces the space during initialization, since it has already been explored."""
    del hp


def tuner_outcome(
    maker: Any,
    trial_id: str,
    hp: Any,
    *,
    objective: Objective,
    run_dir: Path,
    pruner: Pruner | None,
    sign: Callable[[], None],
) -> dict[str, Any]:
    """Runs a trial with the `run_trial` of a custom Tuner; returns the fields of its row.

    Args:
        maker: the search's `TrialMaker`.
        trial_id, hp: of the trial.
        objective, run_dir: of the search.
        pruner: decides when to stop the trial.
        sign: the heartbeat, called while the trial runs.
    """
    workload = maker.workload()
    plan, options = maker.plan(workload), maker.options
    report = TrialReport(objective, {}, pruner=pruner, sign=sign, patience=options.early_stopping)
    keras.backend.clear_session()
    with Runtime(plan, seed=options.seed) as runtime, runtime.strategy.scope():
        tuner = make_tuner(maker.tuner, maker.space, maker.own_fit, objective, run_dir)
        tuner.executions_per_trial = options.executions_per_trial
        trial = Trial(hyperparameters=hp, trial_id=trial_id, status="RUNNING")
        tuner.oracle.trials[trial_id] = trial
        position, names = OwnArguments(tuner.run_trial, given=1).of(
            None if maker.source.workload.kind == "none" else workload,
            batch_size=plan.global_batch_size,
            seed=options.seed,
            epochs=maker.epochs,
            callbacks=[*maker.callbacks(), report],
        )
        result = tuner.run_trial(trial, *position, **names)
    metrics = _reported(tuner, trial) or fatal_unless_metrics(result, objective, {})
    score = objective.check_finite(objective.value(metrics))
    status = "completed" if report.prune_cause is None else "pruned"
    return {"status": status, "cause": report.prune_cause, "score": score, "metrics": metrics}


def _reported(tuner: Any, trial: Any) -> dict[str, float] | None:
    """The best values that `run_trial` reported by `oracle.update_trial`; None if it reported none."""
    if not trial.metrics.exists(tuner.oracle.objective.name):
        return None
    return {metric: float(trial.metrics.get_best_value(metric)) for metric in trial.metrics.metrics}
